"""The frame around all pages: the start, the key, the keyboard, and light and dark."""

import pytest
from playwright.sync_api import expect

from tests.studio.browser import accessibility_violations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAGES = {"o": "Overview", "g": "Graph", "p": "Play", "r": "Requests", "m": "Models"}


def test_a_page_that_is_opened_during_the_start_shows_how_far_it_is(started_server):
    _, shown, complaints = started_server
    assert any("Starting" in text for text in shown)
    assert any("llm: loading assistant.lm" in text for text in shown)
    assert any("image: up" in text for text in shown)
    assert any("Warming up" in text for text in shown)
    assert complaints == []


# ---------------------------------------------------------------- the key
def test_a_wrong_key_is_reported_and_a_right_one_opens_the_page(locked, open_page):
    page = open_page(f"{locked.url}/#/models", allow={401})
    dialog = page.get_by_role("dialog", name="Sign in")
    dialog.get_by_label("API key").fill("open")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid API key")
    dialog.get_by_label("API key").fill("sesame")
    dialog.get_by_label("API key").press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("main")).to_contain_text("bird")
    page.reload()
    expect(page.get_by_role("main")).to_contain_text("bird")  # it is kept in this tab
    page.get_by_role("button", name="Sign out").click()
    expect(dialog).to_be_visible()
    expect(page.get_by_role("main")).not_to_contain_text("bird")


def test_the_sign_in_is_accessible(locked, open_page):
    for scheme in ("light", "dark"):
        page = open_page(f"{locked.url}/", allow={401}, color_scheme=scheme)
        page.get_by_role("dialog", name="Sign in").wait_for()
        assert accessibility_violations(page) == []


# ---------------------------------------------------------------- the keyboard
def focus(page):
    """What has the focus, as its role and its name."""
    return page.evaluate("(document.activeElement.ariaLabel ?? document.activeElement.textContent).trim()")


def test_every_page_is_reached_by_its_key(studio_server, open_page):
    page = open_page(studio_server.url)
    for key, name in PAGES.items():
        page.keyboard.press(key)
        expect(page).to_have_title(f"{name} · mstar studio")
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)).to_have_attribute(
            "aria-current", "page"
        )
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()


def test_the_page_is_walked_with_the_tab_key_alone(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/models")
    page.get_by_role("heading", name="Models").wait_for()
    page.keyboard.press("Tab")
    assert focus(page) == "Skip to main content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.reload()
    page.get_by_role("heading", name="Models").wait_for()
    seen = []
    while "Requests" not in seen and len(seen) < 12:
        page.keyboard.press("Tab")
        seen.append(focus(page))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"one does not see that {seen[-1]} has the focus"
    page.keyboard.press("Enter")
    expect(page).to_have_title("Requests · mstar studio")


# ---------------------------------------------------------------- light and dark
def test_the_theme_is_the_systems_until_one_is_chosen(studio_server, open_page):
    def paper(page):
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light, dark = (open_page(studio_server.url, color_scheme=scheme) for scheme in ("light", "dark"))
    assert paper(light) != paper(dark)
    for _ in range(2):  # auto, light, dark
        light.get_by_role("button", name="Theme").click()
    expect(light.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert paper(light) == paper(dark)
    light.reload()
    light.get_by_role("button", name="Theme: dark").wait_for()
    assert paper(light) == paper(dark)
