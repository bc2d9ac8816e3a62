"""The timelines of requests: found, opened, zoomed, told in words, compared, and taken away as a file."""

import json

import pytest
from playwright.sync_api import expect

from tests.studio.browser import canvas_data, chat_body

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ids(started_server):
    """A short answer and a long one."""
    with started_server[0].client() as client:
        asks = [chat_body("What is the capital of France?"), chat_body("Count from one to twenty in words.")]
        return [client.post("/v1/chat/completions", json=body).headers["X-Request-Id"] for body in asks]


def test_a_request_is_found_in_the_list_and_opened(studio_server, ids, open_page):
    page = open_page(f"{studio_server.url}/#/requests")
    page.get_by_label("Endpoint").select_option("/v1/chat/completions")
    page.get_by_label("Text", exact=True).fill(ids[0])
    rows = page.get_by_role("region", name="Requests").get_by_role("row")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name=ids[0]).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(ids[0])
    expect(page.get_by_role("main")).to_contain_text("lm.next_token")
    page.get_by_role("link", name="Requests").last.click()
    page.get_by_label("Find by id").fill(ids[1])
    page.get_by_label("Find by id").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(ids[1])


def test_the_waterfall_is_zoomed_and_reported_in_words(studio_server, ids, open_page):
    page = open_page(f"{studio_server.url}/#/requests/{ids[1]}")
    waterfall = page.get_by_role("application", name=f"Waterfall of {ids[1]}")
    drawn = waterfall.locator("canvas")
    waterfall.wait_for()
    page.wait_for_timeout(300)
    whole = canvas_data(drawn)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_timeout(100)
    nearer = canvas_data(drawn)
    assert nearer != whole
    waterfall.hover()
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(100)
    assert canvas_data(drawn) not in (whole, nearer)
    page.get_by_role("button", name="Fit all").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    assert canvas_data(drawn) == whole
    waterfall.focus()
    payload = []
    for _ in range(40):
        page.keyboard.press("ArrowDown")
        payload.append(page.locator(".details").inner_text())
    assert any("lm.next_token" in text and "calls" in text for text in payload)
    page.get_by_text("All spans as a table").click()
    table = page.get_by_role("region", name="All spans")
    expect(table.get_by_role("row").filter(has_text="lm.next_token").first).to_contain_text("llm")


def test_two_requests_are_compared(studio_server, ids, open_page):
    page = open_page(f"{studio_server.url}/#/requests")
    for one in ids:
        page.get_by_role("checkbox", name=f"Compare {one}").check()
    page.get_by_role("link", name="Compare").click()
    for name, one in zip("AB", ids, strict=True):
        expect(page.get_by_role("application", name=f"Waterfall of {name}, {one}")).to_be_visible()
    table = page.get_by_role("region", name="Durations in both")
    expect(table.get_by_role("row").filter(has_text="lm.next_token")).to_be_visible()
    expect(table.get_by_role("row").filter(has_text="total")).to_contain_text("+")


def test_the_file_for_perfetto_is_one(studio_server, ids, open_page, tmp_path):
    page = open_page(f"{studio_server.url}/#/requests/{ids[0]}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download trace").click()
    assert download.value.suggested_filename == f"{ids[0]}.perfetto.json"
    download.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert any("lm.next_token" in event["name"] for event in spans)
    assert all(event["dur"] >= 0 for event in spans)


def test_a_running_request_is_cancelled(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/requests")
    with studio_server.client() as client:
        body = chat_body("Write a very long story about the sea.", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            one, lines = answer.headers["X-Request-Id"], answer.iter_lines()
            next(lines)
            page.goto(f"{studio_server.url}/#/requests/{one}")
            page.get_by_role("button", name="Cancel request").click()
            expect(page.get_by_role("button", name="Cancel request")).to_be_hidden()
            assert "cancelled" in "".join(lines)


def test_what_is_not_there_is_reported(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/requests/no-such-id", allow={404})
    expect(page.get_by_role("alert")).to_contain_text("no-such-id")
    expect(page.get_by_label("Find by id")).to_be_visible()
