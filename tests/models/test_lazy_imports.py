"""Lazy imports: a model is loaded, traced and checked without the libraries that its ops need."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "src" / "mstar" / "models"
FOUND = [
    f"{path}:{name}"
    for path in sorted(MODELS.glob("*/*.py"))
    for name in re.findall(r"^class (\w+)\((?:Model|SmolLm2Text)\)", path.read_text(), re.MULTILINE)
    if name not in ("SpokenChat", "SmolLm2Text")  # bases of models
]
HEAVY = ("torch", "transformers", "numpy", "onnxruntime", "gguf", "tokenizers", "hibari")


@pytest.mark.parametrize("target", FOUND, ids=lambda target: target.rpartition(":")[2])
def test_a_model_is_traced_without_its_libraries(target):
    code = f"""
import sys
from mstar.walk.load import load_model
assert load_model({target!r}).graphs()
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
