"""Fake CUDA: networks of any size on `cuda:0` without a GPU and without memory, with torch's FakeTensorMode.

FakeTensorMode needs a device guard for CUDA, which a CPU build of torch does not have. The one compiled here does
nothing.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

DEVICE = torch.device("cuda:0")
_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
}
"""


class _FakeTensors(FakeTensorMode):
    """FakeTensorMode that does not ask CUDA for anything."""

    # torch asks whether this process has any accelerator, and the pretend GPU of another test is one.
    avoid_device_init = True


@functools.cache
def _load_guard() -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("fake CUDA needs g++")
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(_GUARD)
        flags = ["-O0", "-std=c++20", "-fPIC", "-shared", f"-I{root / 'include'}"]
        link = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-lc10"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library), *link], check=True, capture_output=True)
        ctypes.CDLL(str(library))


@contextmanager
def fake_cuda(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """New tensors are on `cuda:0`, of this dtype unless another is given, and hold no values."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    _load_guard()
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _FakeTensors(allow_non_fake_inputs=True), torch.device(DEVICE), no_init_weights():
            yield
    finally:
        torch.set_default_dtype(default)
