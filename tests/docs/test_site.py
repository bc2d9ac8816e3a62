"""The documentation becomes a site: nothing leads nowhere, and nothing is fetched from elsewhere when it is read."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""What a browser fetches by itself when it shows a page."""


class Links(HTMLParser):
    """The addresses on a page: those that a reader may follow, and those that the page needs."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.followed: list[str] = []
        self.needed: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.followed.append(given["href"])
        if (name := LOADED.get(tag)) and given.get(name) and given.get("rel") not in ("canonical", "next", "prev"):
            self.needed.append(given[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return {path: Links(path.read_text("utf-8")) for path in made.rglob("*.html")}


def test_every_link_leads_somewhere(site):
    lost = []
    for page, links in site.items():
        for href in {*links.followed, *links.needed}:
            url = urlsplit(href)
            if url.scheme in ("http", "https", "mailto", "javascript") or page.name == "404.html":
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (url.fragment and target in site and url.fragment not in site[target].anchors):
                lost.append(f"{page.name}: {href}")
    assert lost == []


def test_nothing_is_fetched_from_elsewhere(site):
    needed = {href for links in site.values() for href in links.needed}
    assert any(href.endswith(".css") for href in needed)
    assert [href for href in needed if urlsplit(href).netloc] == []
