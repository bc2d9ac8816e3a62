"""The page of figures is what the recorded runs give: claims with enough runs, and all others with the reason."""

from dataclasses import replace

import pytest

from bench import page
from bench.claims import Row
from bench.registry import BENCHES
from bench.repository import ROOT, Repository
from tests.bench.toy_history import TOY

FIVE = (1.0, 2.0, 2.5, 1.5, 3.5)


def written(checkout) -> str:
    page.write({"toy": TOY}, checkout.root)
    return checkout.read("docs/performance.md")


def claims(text: str) -> str:
    return text[: text.index("<!-- end of claims")]


# ---------------------------------------------------------------- this repository
@pytest.mark.skipif(not Repository().has_history(), reason="needs the git history: a clone that is not shallow")
def test_the_pages_are_what_was_recorded():
    files = page.render_files(BENCHES)
    stale = [str(path) for path, text in files.items() if (ROOT / path).read_text("utf-8") != text]
    assert stale == [], "fix: python -m bench page"
    folder = ROOT / page.PICTURES
    there = {path.relative_to(ROOT) for path in folder.iterdir()} if folder.exists() else set()
    assert there == {path for path in files if path.suffix == ".svg"}, "fix: python -m bench page"


def test_every_figure_in_readme_is_generated():
    text = (ROOT / page.README).read_text("utf-8")
    names = [cell[1] for cell in page.README_CELL.finditer(text)]
    assert len(names) == text.count("`python -m bench ")
    assert names
    assert BENCHES.keys() >= {*names}


# ---------------------------------------------------------------- claims
def test_a_claim_has_its_median_spread_runs_commit_and_processor(checkout):
    checkout.add_runs(*FIVE, details={"unit": "ms"})
    row = f"At most 3 ms. | 2 ms (target 3) | 1 to 3.5 | 4 of 5 | `{checkout.commit[:7]}` | a processor | met |  |"
    text = written(checkout)
    assert f"| [Is it cheap?](#toy) | {row}" in text
    assert "1 benchmarks: 1 targets met, 0 missed, 0 without enough runs for a claim." in text
    assert "between" in text


def test_a_missed_target_is_in_the_same_table_with_its_reason(checkout):
    checkout.add_runs(*(value + 2 for value in FIVE))
    assert "| 4 (target 3) | 3 to 5.5 | 1 of 5 |" in claims(written(checkout))
    assert "| **missed** | Too slow. |" in claims(written(checkout))


def test_too_few_runs_are_no_claim(checkout):
    checkout.add_runs(1.234, 1.234)
    text = written(checkout)
    assert "| not enough runs: 2 of 5 |" in claims(text)
    assert "1.23" not in claims(text)
    assert f"| `{checkout.commit[:7]}` | 1.23, 1.23 | 2 of 2 | a processor | 2 of 5 runs |" in text


def test_runs_that_do_not_count_are_shown_with_the_reason(checkout):
    checkout.add_runs(*FIVE)
    checkout.add_runs(1.234, 4.0, is_clean=False)
    checkout.add_runs(1.0, claim=None, error="ValueError")
    text = written(checkout)
    assert "1.23" not in claims(text)
    assert "| 1.23, 4 | 1 of 2 | a processor | dirty tree |" in text
    assert "|  | 0 of 1 | a processor | ended with ValueError |" in text


def test_a_bench_that_was_not_run_says_so(checkout):
    head = "### toy\n\nIs it cheap? `python -m bench toy`\n\nWhat it costs. Target: At most 3 ms.\n\n"
    assert f"{head}No run on record.\n" in written(checkout)


def test_the_median_run_is_shown_with_all_its_figures(checkout):
    rows = [Row("a thing", "ms", [2.0, 1.0, 4.0]), Row("  times faster", "x", [3.0])]
    curve = {"x": [0, 1], "series": {"ours": [100, 90], "theirs": [100, 40]}, "axes": ["load", "on time"]}
    checkout.add_runs(*FIVE, rows=rows, details={"worst_ms": 4.0, "of": {"1": 0.5, "same": True}, "curve": curve})
    text = written(checkout)
    assert "| a thing | 2 | 1 | 4 | ms | 3 |\n| · times faster | 3 | 3 | 3 | x | 1 |\n" in text
    assert "- worst ms: 4\n- of: 1 0.5, same yes\n" in text
    assert "| load | ours | theirs |\n|---|---|---|\n| 0 | 100 | 100 |\n| 1 | 90 | 40 |\n" in text
    assert "- curve" not in text
    assert "other work took 1% of the CPU time before and 2% during the run, steal 0%" in text


def test_a_new_series_is_shown_beside_the_old_one(checkout):
    checkout.add_runs(1.0, 1.5)
    checkout.add_runs(2.0, 4.0, series=2)
    page.write({"toy": replace(TOY, series=2, decision="0001-note.md")}, checkout.root)
    text = checkout.read("docs/performance.md")
    assert "Series 2: [what changed](decisions/0001-note.md)." in text
    assert f"| 1 | `{checkout.commit[:7]}` | 1, 1.5 | 2 of 2 | a processor | series 1, the current one is 2 |" in text
    assert f"| 2 | `{checkout.commit[:7]}` | 2, 4 | 1 of 2 | a processor | 2 of 5 runs |" in text


# ---------------------------------------------------------------- files
def test_only_published_claims_have_a_picture(checkout):
    checkout.add_runs(1.0)
    written(checkout)
    assert list((checkout.root / page.PICTURES).iterdir()) == []
    checkout.add_runs(*FIVE)
    assert "](pictures/performance/toy.svg)" in written(checkout)
    assert (checkout.root / page.PICTURES / "toy.svg").exists()
    page.write({"other": TOY}, checkout.root)
    assert list((checkout.root / page.PICTURES).iterdir()) == []


def test_readme_shows_the_claim_or_that_there_is_none(checkout):
    written(checkout)
    assert checkout.read("README.md").startswith("| what | target | not enough runs yet | `python -m bench toy` |\n")
    checkout.add_runs(*FIVE, details={"unit": "ms"})
    written(checkout)
    cell = "2 ms (1 to 3.5): met (4 of 5 runs met it)"
    assert checkout.read("README.md").startswith(f"| what | target | {cell} | `python -m bench toy` |\n")
    assert checkout.read("README.md").endswith("| - | `python -m bench other` |\n")


def test_a_page_without_markers_is_an_error():
    with pytest.raises(ValueError, match=r"(?s)<!-- end of figures -->.*fix: "):
        page.replace_section("nothing", "figures", [])
