from tests.chaos.conftest import report

__all__ = ["report"]
