"""tools/names.py: vague names, retired words and idioms are found; names that merely contain the letters are not."""

import pytest

from tools.names import RETIRED_NAMES, RETIRED_PARTS, VAGUE, check


@pytest.fixture
def problems(tmp_path):
    """Writes one file and returns the problems as text."""

    def write_and_check(text, path="src/mstar/plan.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return [str(problem) for problem in check(tmp_path)]

    return write_and_check


# ---------------------------------------------------------------- vague names
@pytest.mark.parametrize("word", sorted(VAGUE))
def test_every_vague_word_is_found_in_classes_files_and_folders(problems, word):
    assert problems(f"class Page{word.title()}: ...")
    assert problems("", f"src/mstar/page_{word}s.py")
    assert problems("", f"src/mstar/{word}/page.py")


@pytest.mark.parametrize("name", ["BaseWorker", "MetaData", "HTTPUtils", "_Common", "IOHelper2", "base", "Info3D"])
def test_vague_words_are_found_in_every_way_of_writing(problems, name):
    assert problems(f"class {name}: ...")


@pytest.mark.parametrize("name", ["Baseline", "Database", "Information", "Simple", "Utility", "Implicit"])
def test_longer_words_pass(problems, name):
    assert not problems(f"class {name}: ...")


@pytest.mark.parametrize("name", ["get_page", "_get_page", "__get_page"])
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_getters_are_found(problems, name, keyword):
    assert problems(f"class Pool:\n    {keyword} {name}(self): ...") == [
        f"src/mstar/plan.py:2: the function {name} begins with get_, "
        "fix: a noun for what it returns, or a verb for what it does (read, find, make)"
    ]


@pytest.mark.parametrize("name", ["__get__", "__getattr__", "get", "getter", "forget_page", "target_page"])
def test_other_functions_pass(problems, name):
    assert not problems(f"def {name}(): ...")


def test_vague_names_are_allowed_in_tests(problems):
    assert not problems("class BaseWorker: ...\ndef get_page(): ...", "tests/test_utils.py")


# ---------------------------------------------------------------- retired words
@pytest.mark.parametrize("word", sorted(RETIRED_PARTS))
def test_every_retired_word_is_found_as_a_part_of_a_name(problems, word):
    assert problems(f"is_{word}s = 1")
    assert problems(f"class Old{word.title()}: ...", "tests/test_x.py")
    assert problems(f"See `{word}s`.", "docs/page.md")


@pytest.mark.parametrize("name", sorted(name for name in RETIRED_NAMES if name.isidentifier()))
def test_every_retired_name_is_found(problems, name):
    assert problems(f"{name} = 1", "bench/x.py")
    assert problems(f"const {name} = 1;", "src/mstar/studio/static/x.js")


@pytest.mark.parametrize("text", ["near = 1", "keynote = 1", "x = 'told'", "# the door", "def visit_Name(self): ..."])
def test_other_words_prose_and_node_visitors_pass(problems, text):
    assert not problems(text)


def test_prose_in_documentation_may_use_a_retired_word(problems):
    assert not problems("A tour of the code.", "docs/page.md")


# ---------------------------------------------------------------- idioms
@pytest.mark.parametrize("idiom", ["so many", "so long", "Somebody", "nobody", "whoever", "who may", "held against"])
def test_idioms_are_found_in_docstrings_comments_and_documentation(problems, idiom):
    assert problems(f'"""Waits {idiom} seconds."""')
    assert problems(f"x = 1  # {idiom} of them")
    assert problems(f"Waits {idiom} seconds.", "docs/page.md")
    assert problems(f"x = 'waits {idiom} seconds'")


def test_strings_of_tests_are_data(problems):
    assert not problems("x = 'nobody knows'", "tests/test_x.py")


def test_so_long_as_passes(problems):
    assert not problems('"""So many that it fails, so long as it runs."""')
