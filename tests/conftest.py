import gc

import pytest
from hypothesis import settings

# The same examples in every run and no time limit per example, so that CI fails for a change and not by chance. Who
# searches for more says --hypothesis-profile=default.
settings.register_profile("repeated", derandomize=True, deadline=None)
settings.load_profile("repeated")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


MARKS = {"slow": ("pytest.mark.slow",), "nightly": ("pytest.mark.nightly", "ci_cases")}
"""What the source of a file has if some of its tests are in this tier."""


def pytest_ignore_collect(collection_path, config):
    """Import only files that have tests of the tier: the imports of all others take as long as many tests."""
    marks = MARKS.get(config.option.markexpr.partition(" ")[0])
    if marks is None or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    return None if any(mark in text for mark in marks) else True


def pytest_collection_finish():
    """Imported modules stay for the whole run, so garbage collections need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request):
    """Compares a text with a golden file, or writes that file when asked to."""

    def compare(path, text):
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path} is missing; write it with pytest --update-golden"
        assert text == path.read_text("utf-8")

    return compare
