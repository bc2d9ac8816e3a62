"""ONNX Runtime without telemetry.

ONNX Runtime reports to Microsoft by default. `mstar.config.disable_telemetry` turns that off through the environment,
before the import. `import_onnxruntime` also turns it off through the API, for programs that load a model themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mstar.errors import LoadError


def import_onnxruntime(user: str) -> Any:
    """Import ONNX Runtime and turn off its telemetry events. Raises LoadError, which names the user."""
    try:
        import onnxruntime
    except ImportError as error:
        raise LoadError(f"{user} needs a library: {error}\n  fix: pip install 'mstar-serve[onnx]'") from error
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(user: str, path: Path) -> Any:
    """An inference session on one CPU thread."""
    onnxruntime = import_onnxruntime(user)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
