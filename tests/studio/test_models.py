"""The models: what runs where, and letting one rest until it is asked again."""

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_runs_where_is_told(house, open_page):
    page = open_page(f"{house.url}/#/models")
    page.get_by_role("article", name="assistant").get_by_role("link", name="assistant").click()
    expect(page.get_by_role("main")).to_contain_text("3 workers on 1 host")
    places = page.get_by_role("region", name="What runs where")
    expect(places.get_by_role("row").filter(has_text="speaker.say").first).to_contain_text("mouth")
    crossings = page.get_by_role("region", name="What crosses")
    expect(crossings.get_by_role("row").filter(has_text="mouth").first).to_contain_text("talk")
    page.get_by_text("The plan as text").click()
    expect(page.get_by_label("The plan", exact=True)).to_contain_text("walk talk on")


def test_a_model_rests_until_it_is_asked_again(house, open_page):
    page = open_page(f"{house.url}/#/models")
    card = page.get_by_role("article", name="assistant")
    expect(card).to_contain_text("up")
    card.get_by_role("button", name="Unload assistant").click()
    expect(card).to_contain_text("The next request for it loads it again")
    card.get_by_role("button", name="Keep it").click()
    card.get_by_role("button", name="Unload assistant").click()
    card.get_by_role("button", name="Unload", exact=True).click()
    expect(card.get_by_text("resting", exact=True)).to_be_visible(timeout=60_000)
    expect(page.get_by_role("article", name="faces").get_by_text("up", exact=True)).to_be_visible()
    page.goto(f"{house.url}/#/play/chat/assistant")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("What is the capital of France?")
    page.get_by_label("Message").press("Enter")
    expect(page.get_by_role("log", name="What was said")).to_contain_text("Paris", timeout=120_000)
    page.goto(f"{house.url}/#/models")
    expect(card.get_by_text("up", exact=True)).to_be_visible(timeout=60_000)


def test_a_model_that_cannot_rest_says_why(locked, open_page):
    page = open_page(f"{locked.url}/#/models", allow={401, 409})
    page.get_by_label("API key").fill("sesame")
    page.get_by_label("API key").press("Enter")
    card = page.get_by_role("article", name="bird")
    card.get_by_role("button", name="Unload bird").click()
    card.get_by_role("button", name="Unload", exact=True).click()
    expect(card.get_by_role("alert")).to_contain_text("cannot be unloaded")
