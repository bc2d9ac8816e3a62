"""Every page in both themes and on a phone: no accessibility violations, and nothing overflows the screen."""

import pytest
from playwright.sync_api import expect

from tests.studio.browser import accessibility_violations, chat_body
from tests.tiers import ci_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAGES = (
    "overview",
    "graph/assistant",
    "graph/faces",
    "play/chat",
    "play/conversation",
    "play/speech",
    "play/transcription",
    "play/images",
    "play/video",
    "play/robot",
    "play/world",
    "requests",
    "requests/ONE",
    "requests/ONE/OTHER",
    "models",
    "models/assistant",
)


@pytest.fixture(scope="module")
def pages(started_server):
    """All of them, with requests to look at."""
    with started_server[0].client() as client:
        asks = [client.post("/v1/chat/completions", json=chat_body("Hello.", max_tokens=8)) for _ in range(2)]
    one, other = (answer.headers["X-Request-Id"] for answer in asks)
    return [page.replace("ONE", one).replace("OTHER", other) for page in PAGES]


def load_page(page, url, where):
    """A page of the studio, with all that it shows at first."""
    page.goto(f"{url}/#/{where}")
    expect(page.get_by_role("heading", level=1)).to_be_attached()
    expect(page.get_by_role("main").get_by_role("progressbar")).to_have_count(0)
    if "play" in where:
        page.get_by_text("Code for this request").click()
    page.wait_for_timeout(150)


@pytest.mark.parametrize("scheme", ci_cases(["light", "dark"], "dark"))
def test_every_page_is_accessible(studio_server, pages, open_page, scheme):
    page = open_page(studio_server.url, color_scheme=scheme)
    results = {}
    for where in pages:
        load_page(page, studio_server.url, where)
        results[where] = accessibility_violations(page)
    assert {where: one for where, one in results.items() if one} == {}


def test_every_page_fits_a_phone(studio_server, pages, open_page):
    page = open_page(studio_server.url, viewport={"width": 390, "height": 800}, has_touch=True)
    results = {}
    for where in pages:
        load_page(page, studio_server.url, where)
        results[where] = page.evaluate("document.documentElement.scrollWidth")
    assert {where: wide for where, wide in results.items() if wide > 390} == {}
