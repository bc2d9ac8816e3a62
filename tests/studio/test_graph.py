"""The live graph: requests are seen walking, and what happens to a worker is seen too."""

import re
import threading
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.studio.browser import canvas_data, chat_body, wait_until_used

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SPOKEN = " ".join(f"This is sentence number {number}, and it is said aloud." for number in range(1, 25))
STORY = "Write a very long story about the sea."
DOT = """one => {
    const { width, height } = one, copy = new OffscreenCanvas(width, height).getContext("2d");
    copy.drawImage(one, 0, 0);  // a canvas that is read often makes Chromium warn
    const pixels = copy.getImageData(0, 0, width, height).data;
    for (let at = 3; at < pixels.length; at += 4) {
        if (pixels[at] > 200) {
            const place = (at - 3) / 4, scale = one.clientWidth / width;
            return { x: (place % width) * scale, y: Math.floor(place / width) * scale + 2 };
        }
    }
    return null;
}"""
"""Where in a canvas something is drawn, as a pointer knows it."""
COVERS = """one => {
    const { left, right, top, bottom } = one.getBoundingClientRect(), found = new Set();
    for (let x = left + 12; x < right - 12; x += 8)
        for (let y = top + 12; y < Math.min(bottom - 12, innerHeight); y += 8) {
            const shown = document.elementFromPoint(x, y);
            if (!one.contains(shown)) found.add(shown?.outerHTML.slice(0, 80));
        }
    return [...found];
}"""
"""What is drawn over an element."""


@contextmanager
def background_requests(server, count, **more):
    """Clients that read their responses until the viewer leaves."""
    is_over = threading.Event()

    def read():
        with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for _ in answer.iter_lines():
                if is_over.is_set():
                    break

    body = chat_body(STORY, stream=True, **more)
    clients = [threading.Thread(target=read) for _ in range(count)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        is_over.set()
        for client in clients:
            client.join()


def card(page, worker):
    """What is shown of a worker."""
    return page.get_by_role("region", name="Workers").get_by_role("listitem").filter(has_text=worker)


def table(page):
    """What the dots show, in words."""
    return page.get_by_role("region", name="Running requests").get_by_role("table")


def point_at_dot(page, drawn):
    """Move the pointer to a dot. It can have moved on when the pointer arrives."""
    sheet = drawn.locator("xpath=..")
    for _ in range(50):
        sheet.hover(position=drawn.evaluate(DOT))
        page.wait_for_timeout(50)
        if "clickable" in sheet.get_attribute("class").split():
            return
    pytest.fail("the pointer met no dot")


def test_requests_are_seen_walking(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/graph/assistant")
    walk = page.get_by_role("region", name="walk answer", exact=True)
    expect(walk).to_contain_text("0 requests")
    expect(walk.get_by_role("link", name="op lm.next_token").first).to_be_visible()
    with background_requests(studio_server, 6, max_tokens=400):
        expect(walk).to_contain_text("6 requests")
        drawn = walk.locator("canvas")
        seen = set()
        for _ in range(30):
            seen.add(canvas_data(drawn))
            page.wait_for_timeout(50)
        assert len(seen) > 10  # the dots move
        expect(
            walk.get_by_text(re.compile("^×[2-6]$")).filter(visible=True).first
        ).to_be_visible()  # they share batches
        expect(card(page, "llm")).to_contain_text(re.compile(r"Busy\s*[1-9]\d* %"))
        rows = table(page).get_by_role("row")
        expect(rows).to_have_count(7)
        expect(rows.nth(1)).to_contain_text("on llm")
        expect(page.get_by_role("banner")).to_contain_text(re.compile("[6-9] running"))  # worlds of others may be open
        point_at_dot(page, drawn)
        page.mouse.down()  # a dot is a way to its timeline
        page.mouse.up()
        expect(page).to_have_title("Requests · mstar studio")
        expect(page.get_by_role("button", name="Cancel request")).to_be_visible()


def test_a_folded_walk_unfolds_when_a_request_enters_it(studio_server, open_page):
    with studio_server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("Hello.", max_tokens=4)).raise_for_status()
    wait_until_used(studio_server, "assistant", "answer")
    page = open_page(f"{studio_server.url}/#/graph/assistant")
    op = page.get_by_role("region", name="walk answer_scored").get_by_role("link", name="op lm.score_token")
    expect(page.get_by_role("region", name="walk answer", exact=True).get_by_role("link").first).to_be_visible()
    expect(op).to_have_count(0)
    with background_requests(studio_server, 1, max_tokens=200, logprobs=True):
        expect(op).to_be_visible()


def test_nothing_covers_the_table_of_requests(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/graph/assistant", viewport={"width": 1280, "height": 600})
    table_of_all = page.get_by_role("region", name="Running requests")
    table_of_all.wait_for()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_timeout(200)
    assert table_of_all.evaluate(COVERS) == []


def test_nothing_moves_for_who_does_not_want_it(studio_server, open_page):
    page = open_page(f"{studio_server.url}/#/graph/assistant", reduced_motion="reduce")
    walk = page.get_by_role("region", name="walk answer", exact=True)
    with background_requests(studio_server, 1, max_tokens=200):
        expect(walk).to_contain_text("1 request")
        expect(table(page)).to_contain_text("on llm")
        drawn, seen = walk.locator("canvas"), set()
        for _ in range(30):
            seen.add(canvas_data(drawn))
            page.wait_for_timeout(50)
        assert len(seen) <= 5  # a dot is at one op or at another, and never between them


def test_a_worker_that_dies_is_seen_and_its_request_ends_whole(studio_server, open_page):
    body = {"model": "assistant", "input": SPOKEN, "response_format": "pcm", "seed": 7}
    page = open_page(f"{studio_server.url}/#/graph/assistant")
    expect(card(page, "tts")).to_contain_text("up")

    def listen(received, has_begun):
        with studio_server.client() as client, client.stream("POST", "/v1/audio/speech", json=body) as answer:
            for part in answer.iter_bytes():
                received.extend(part)
                has_begun.set()

    whole, received, has_begun = bytearray(), bytearray(), threading.Event()
    undisturbed = threading.Thread(target=listen, args=(whole, threading.Event()))
    undisturbed.start()
    expect(table(page)).to_contain_text("tts.synthesize on tts")
    undisturbed.join()
    listener = threading.Thread(target=listen, args=(received, has_begun))
    listener.start()
    assert has_begun.wait(30)
    studio_server.kill("tts")  # at once: a fast machine has the rest within a second or two
    expect(card(page, "tts").locator(".tag")).to_have_text(re.compile("down|starting"))
    listener.join()
    assert bytes(received) == whole  # its client has noticed nothing but a pause
    expect(card(page, "tts")).to_contain_text("up")
    expect(card(page, "tts")).to_contain_text(re.compile("[1-9] restart"))
