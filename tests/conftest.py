import pytest
from hypothesis import settings

# The same examples in every run and no time limit per example, so that CI fails for a change and not by chance. Who
# searches for more says --hypothesis-profile=default.
settings.register_profile("repeated", derandomize=True, deadline=None)
settings.load_profile("repeated")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


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
