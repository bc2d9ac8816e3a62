"""The models: what runs where, and letting one rest until it is asked again."""

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_runs_where_is_reported(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/models")
    page.get_by_role("article", name="assistant").get_by_role("link", name="assistant").click()
    expect(page.get_by_role("main")).to_contain_text("3 workers on 1 host")
    places = page.get_by_role("region", name="Placement")
    expect(places.get_by_role("row").filter(has_text="tts.synthesize").first).to_contain_text("tts")
    crossings = page.get_by_role("region", name="Transfers between workers")
    expect(crossings.get_by_role("row").filter(has_text="tts").first).to_contain_text("talk")
    page.get_by_text("Plan as text").click()
    expect(page.get_by_label("Plan", exact=True)).to_contain_text("walk talk on")


def test_a_model_is_unloaded_until_the_next_request(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/models")
    card = page.get_by_role("article", name="assistant")
    expect(card).to_contain_text("loaded")
    card.get_by_role("button", name="Unload assistant").click()
    expect(card).to_contain_text("The next request loads it again")
    card.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Unload assistant").click()
    card.get_by_role("button", name="Unload", exact=True).click()
    expect(card.get_by_text("unloaded", exact=True)).to_be_visible(timeout=60_000)
    expect(page.get_by_role("article", name="faces").get_by_text("loaded", exact=True)).to_be_visible()
    page.goto(f"{studio_server.url}/#/play/chat/assistant")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("What is the capital of France?")
    page.get_by_label("Message").press("Enter")
    expect(page.get_by_role("log", name="Chat log")).to_contain_text("Paris", timeout=120_000)
    page.goto(f"{studio_server.url}/#/models")
    expect(card.get_by_text("loaded", exact=True)).to_be_visible(timeout=60_000)


def test_a_model_that_cannot_be_unloaded_says_why(locked, open_page):
    page = open_page(f"{locked.url}/#/models", allow={401, 409})
    page.get_by_label("API key").fill("sesame")
    page.get_by_label("API key").press("Enter")
    card = page.get_by_role("article", name="bird")
    card.get_by_role("button", name="Unload bird").click()
    card.get_by_role("button", name="Unload", exact=True).click()
    expect(card.get_by_role("alert")).to_contain_text("Cannot unload")
