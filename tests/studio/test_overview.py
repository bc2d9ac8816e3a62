"""The first page: what the models can do, and figures of the last hour."""

import re

import pytest
from playwright.sync_api import expect

from tests.studio.browser import chat_body

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CHARTS = (
    "Responses",
    "Time to first output",
    "On time",
    "Errors",
    "Memory",
    "CPU",
    "Batch size",
    "Running and queued",
)


def test_the_first_page_offers_what_the_models_can_do(studio_server, open_page):
    page = open_page(studio_server.url)
    expect(page).to_have_title("Overview · mstar studio")
    offered = page.get_by_role("list", name="Try it")
    for kind in ("Chat", "Conversation", "Speech", "Transcription", "Images", "Video", "Robot", "World"):
        expect(offered.get_by_role("link", name=kind, exact=True)).to_be_visible()
    expect(page.get_by_text("5 of 5")).to_be_visible()
    offered.get_by_role("link", name="Speech").click()
    expect(page).to_have_title("Play · mstar studio")


def test_the_charts_have_the_figures_of_the_server(studio_server, open_page):
    with studio_server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("Hello.", max_tokens=8)).raise_for_status()
    page = open_page(studio_server.url)
    for name in CHARTS:
        expect(page.get_by_role("figure", name=name, exact=True)).to_be_visible()
    memory = page.get_by_role("img", name=re.compile(r"^Memory: [\d.]+ [MG]iB; highest"))
    expect(memory).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"^Time to first output: p50 [\d.]+ m?s, p99 "))).to_be_visible()
    assert len(memory.locator("path").get_attribute("d")) > 4
    before = page.get_by_role("figure", name="Memory").locator("small").first
    expect(before).to_have_text("resident, all processes")
    memory.hover()
    expect(before).to_have_text(re.compile(r"\d+:\d\d:\d\d"))


def test_the_processes_have_their_cpu_cost(studio_server, open_page):
    with studio_server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("Hello.", max_tokens=8)).raise_for_status()
    table = open_page(studio_server.url).get_by_role("region", name="CPU cost")
    titles = ["Process", "Role", "Cores", "In ops", "Per token", "Per request"]
    expect(table.get_by_role("columnheader")).to_have_text(titles, timeout=30_000)
    row = table.get_by_role("row").filter(has_text="front")
    cost = re.compile(r"^[\d.]+ (µs|m?s)$")
    expect(row.get_by_role("cell")).to_have_text(["frontend", re.compile(r"^[\d.]+$"), "–", cost, cost], timeout=30_000)
