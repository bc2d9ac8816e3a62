"""A model is found, drawn and checked without the libraries that run it: those are loaded where an op runs."""

import subprocess
import sys
from pathlib import Path

import pytest

VOICE = Path(__file__).parents[2] / "src" / "mstar" / "models" / "voice"
FILES = [path for path in sorted(VOICE.glob("*.py")) if "(Model)" in path.read_text()]
HEAVY = ("torch", "transformers", "numpy", "onnxruntime", "gguf", "tokenizers", "hibari")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_model_is_traced_without_its_libraries(file):
    code = f"""
import sys
from mstar.walk.load import load_model
assert load_model({str(file)!r}).graphs()
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
