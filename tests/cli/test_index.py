"""`mstar index`: a folder becomes an index, and a question finds its passage."""

import pytest

from mstar.cli import main

PAGES = {
    "cats.md": "# Cats\nCats are small animals that sleep for most of the day and hunt mice at night.",
    "bonds.txt": "Bonds\nA bond is a loan to a company or a state, which pays interest every year until its end.",
    "notes.py": "print('no document')",
}


@pytest.fixture
def folder(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    for name, text in PAGES.items():
        (pages / name).write_text(text)
    return pages


def test_a_question_finds_its_passage(folder, tmp_path, capsys):
    index = tmp_path / "index"
    assert main(["index", "build", str(folder), "-o", str(index)]) == 0
    captured = capsys.readouterr()
    assert "indexed 2 passages in 1 lists" in captured.out
    assert captured.err.endswith("embedded 2 of 2 passages\n")
    assert main(["index", "search", str(index), "Which animals hunt mice?", "--count", "1"]) == 0
    out = capsys.readouterr().out
    assert "Cats (cats.md, character 0)" in out
    assert "bonds" not in out
    assert main(["index", "build", str(folder), "-o", str(index)]) == 1
    assert "exists\n  fix: choose another folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "pages"]


def test_a_missing_index_is_reported(tmp_path, capsys):
    assert main(["index", "search", str(tmp_path), "Why?"]) == 1
    assert "is not an index" in capsys.readouterr().err


def test_a_missing_folder_is_reported(tmp_path, capsys):
    assert main(["index", "build", str(tmp_path / "none"), "-o", str(tmp_path / "index")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
