"""The tutorials run: their code, commands and servers, and they print what the pages show."""

from pathlib import Path

import pytest

from tests.docs.tutorials.tutorial_page import blocks, forget_modules, run

TUTORIALS = sorted((Path(__file__).parents[3] / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_its_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        outputs = list(run(page, lambda: capsys.readouterr().out))
    finally:
        forget_modules(tmp_path)
    assert [actual for _, actual in outputs] == [expected for expected, _ in outputs]


def test_there_are_four_tutorials_with_outputs_and_a_server():
    assert len(TUTORIALS) == 4
    for page in TUTORIALS:
        page_blocks = blocks(page)
        assert sum(block.language == "text" for block in page_blocks) >= 3, page
        assert any(block.text.startswith("mstar serve ") for block in page_blocks if block.language == "bash"), page
