"""Commits that are in the repository, and trees that equal them."""

import pytest

from bench.repository import Repository


def test_a_fresh_checkout_is_clean(checkout):
    repository = Repository(checkout.root)
    assert repository.is_clean()
    assert repository.commit() == checkout.commit
    assert repository.has_history()


@pytest.mark.parametrize("path", ["src/code.py", "notes.txt"])
def test_any_tracked_change_makes_the_tree_dirty(checkout, path):
    (checkout.root / path).write_text("changed\n")
    assert not Repository(checkout.root).is_clean()
    checkout.git("add", path)
    assert not Repository(checkout.root).is_clean()
    checkout.make_commit()
    assert Repository(checkout.root).is_clean()


def test_a_deleted_file_makes_the_tree_dirty(checkout):
    (checkout.root / "notes.txt").unlink()
    assert not Repository(checkout.root).is_clean()


def test_an_untracked_source_makes_the_tree_dirty(checkout):
    (checkout.root / "src" / "new.py").write_text("x = 2\n")
    assert not Repository(checkout.root).is_clean()


def test_an_untracked_note_does_not(checkout):
    (checkout.root / "todo.txt").write_text("measure\n")
    assert Repository(checkout.root).is_clean()


def test_what_a_run_writes_does_not_make_the_tree_dirty(checkout):
    checkout.add_runs(1.0)
    for path in ("docs/performance.md", "docs/mutation-testing.md", "README.md", "docs/pictures/performance/toy.svg"):
        (checkout.root / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout.root / path).write_text("generated\n")
    assert Repository(checkout.root).is_clean()


def test_a_commit_is_in_the_repository_if_the_checked_out_one_descends_from_it(checkout):
    old = checkout.commit
    checkout.git("checkout", "--quiet", "-b", "aside")
    aside = checkout.make_commit()
    checkout.git("checkout", "--quiet", "main")
    repository = Repository(checkout.root)
    assert repository.contains(old)
    assert repository.contains(old[:7])
    assert not repository.contains(aside)
    assert not repository.contains("0" * 40)
    assert not repository.contains("unknown")


def test_a_folder_without_git_has_no_commits(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    repository = Repository(tmp_path)
    assert repository.commit() == "unknown"
    assert not repository.is_clean()
    assert not repository.contains("abc1234")
    assert not repository.has_history()


def test_a_shallow_clone_has_no_history(checkout, tmp_path):
    checkout.make_commit()
    checkout.git("clone", "--quiet", "--depth=1", f"file://{checkout.root}", str(tmp_path / "clone"))
    assert not Repository(tmp_path / "clone").has_history()
