"""A process interprets the kernels or compiles them: `TRITON_INTERPRET` is read when triton is imported.

Without the variable, `test_interpreter.py` runs the interpreted tests in a process of their own.
"""

import os

import numpy as np
import pytest

INTERPRETED = ["test_triton_attention.py", "test_interpreted_decoders.py", "test_token_draws.py"]
COMPILED = ["test_interpreter.py", "test_cubins.py", "test_plan.py"]

collect_ignore = COMPILED if os.environ.get("TRITON_INTERPRET") == "1" else INTERPRETED


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch):
    """Triton's interpreter has bfloat16 as integers with the same bits, and multiplies those integers in a dot."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    create_dot = InterpreterBuilder.create_dot

    def as_float32(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    monkeypatch.setattr(
        InterpreterBuilder,
        "create_dot",
        lambda builder, a, b, *others: create_dot(builder, as_float32(a), as_float32(b), *others),
    )
