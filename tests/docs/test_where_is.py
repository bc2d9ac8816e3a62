"""docs/where-is.md: each term of the field leads to the file that implements it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "where-is.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)


def test_there_are_at_least_60_terms():
    terms = [term.lower() for term, _, _ in ROWS]
    assert len(terms) == len(set(terms))
    assert len(terms) >= 60


@pytest.mark.parametrize(("term", "path", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_a_term_leads_to_its_file(term, path, name):
    """A search for the term finds the file, and the file defines what the page names."""
    text = (ROOT / "src" / "mstar" / path).read_text("utf-8")
    words = r"[\s_-]*".join(map(re.escape, re.split(r"[\s-]+", term)))
    assert re.search(words, text, re.IGNORECASE), f"{path} does not contain the term {term!r}"
    assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", text, re.MULTILINE), f"{path} does not define {name}"
