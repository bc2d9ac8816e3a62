"""A process interprets the kernels or compiles them: `TRITON_INTERPRET` is read when triton is imported.

Without the variable, `test_interpreter.py` runs the interpreted tests in a process of their own.
"""

import os

import numpy as np
import pytest
import torch

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


@pytest.fixture(autouse=True)
def rounding(monkeypatch):
    """Triton's interpreter cuts float32 to bfloat16, and rounds to fp8 without carries and subnormal numbers."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    convert, cast = InterpreterBuilder.create_fp_to_fp, InterpreterBuilder.cast_impl

    def cast_impl(builder, source, target):
        target = target.scalar
        if source.dtype.scalar == tl.float32 and target == tl.bfloat16:
            rounded = torch.from_numpy(source.data.copy()).to(torch.bfloat16)
            return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), target)
        return cast(builder, source, target)

    def create_fp_to_fp(builder, source, target, rounding):
        target = target.scalar
        if target == tl.float8e4nv and source.dtype.scalar == tl.float32:
            rounded = torch.from_numpy(source.data.copy()).to(torch.float8_e4m3fn)
            return TensorHandle(rounded.view(torch.uint8).numpy(), target)
        if source.dtype.scalar != tl.float8e4nv:
            return convert(builder, source, target, rounding)
        exact = torch.from_numpy(source.data.copy()).view(torch.float8_e4m3fn).float().numpy()
        handle = TensorHandle(exact, tl.float32)
        return handle if target == tl.float32 else builder.cast_impl(handle, target)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
    monkeypatch.setattr(InterpreterBuilder, "create_fp_to_fp", create_fp_to_fp)
