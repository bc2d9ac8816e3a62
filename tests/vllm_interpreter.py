"""The interpreter with vLLM that `scripts/install-vllm` makes."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def vllm_python() -> str:
    """Its path; the test is skipped without it."""
    python = REPOSITORY / ".venv-vllm" / "bin" / "python"
    if not python.is_file():
        pytest.skip("vLLM is not installed: scripts/install-vllm")
    return str(python)
