"""tools/names.py: names that say nothing are refused, names that merely contain the letters are not."""

import pytest

from tools.names import REFUSED, check


@pytest.fixture
def problems(tmp_path):
    """Writes one file and returns the problems as text."""

    def write_and_check(text, path="src/mstar/plan.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return [str(problem) for problem in check(tmp_path)]

    return write_and_check


@pytest.mark.parametrize("word", sorted(REFUSED))
def test_every_refused_word_is_found_in_classes_files_and_folders(problems, word):
    assert problems(f"class Page{word.title()}: ...")
    assert problems("", f"src/mstar/page_{word}s.py")
    assert problems("", f"src/mstar/{word}/page.py")


@pytest.mark.parametrize("name", ["BaseWorker", "MetaData", "HTTPUtils", "_Common", "IOHelper2", "base", "Info3D"])
def test_words_are_found_in_every_way_of_writing(problems, name):
    assert problems(f"class {name}: ...")


@pytest.mark.parametrize("name", ["Baseline", "Database", "Information", "Simple", "Utility", "Implicit"])
def test_longer_words_pass(problems, name):
    assert not problems(f"class {name}: ...")


@pytest.mark.parametrize("name", ["get_page", "_get_page", "__get_page"])
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_getters_are_refused(problems, name, keyword):
    assert problems(f"class Pool:\n    {keyword} {name}(self): ...") == [
        f"src/mstar/plan.py:2: the function {name} begins with get_, "
        "fix: a noun for what it returns, or a verb for what it does (read, find, make)"
    ]


@pytest.mark.parametrize("name", ["__get__", "__getattr__", "get", "getter", "forget_page", "target_page"])
def test_other_functions_pass(problems, name):
    assert not problems(f"def {name}(): ...")


def test_only_src_is_read(problems):
    assert not problems("class BaseWorker: ...\ndef get_page(): ...", "tests/test_utils.py")
