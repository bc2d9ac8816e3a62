import pytest

from tests.chaos.conftest import report
from tests.integration.budgets.bystander import serve_budgets

__all__ = ["report"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with serve_budgets(tmp_path_factory.mktemp("budgets")) as started:
        yield started
