"""ONNX Runtime without telemetry.

ONNX Runtime reports to Microsoft by default. `mstar.config.disable_telemetry` turns that off through the environment,
before the import. `import_onnxruntime` also turns it off through the API, for programs that load a model themselves.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from mstar.errors import LoadError

log = logging.getLogger("mstar.nn")
_CPU_PROVIDER = "CPUExecutionProvider"
_CUDA_PROVIDER = "CUDAExecutionProvider"
_MAX_ONE_BYTE_VARINT = 127


def import_onnxruntime(user: str) -> Any:
    """Import ONNX Runtime and turn off its telemetry events. Raises LoadError, which names the user."""
    try:
        import onnxruntime
    except ImportError as error:
        raise LoadError(f"{user} needs a library: {error}\n  fix: pip install 'mstar-serve[onnx]'") from error
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(user: str, path: Path, device: Any = None, *, also: str = "") -> Any:
    """An inference session on one CPU thread, or on a torch device if ONNX Runtime has a provider for it.

    `also` names an internal float32 value of the network, which becomes its last output.
    """
    onnxruntime = import_onnxruntime(user)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    providers: list[Any] = [_CPU_PROVIDER]
    if device is not None and device.type == "cuda" and _CUDA_PROVIDER in onnxruntime.get_available_providers():
        providers.insert(0, (_CUDA_PROVIDER, {"device_id": device.index or 0}))
    model = path.read_bytes() + _output_field(also) if also else str(path)
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    if device is not None and device.type != "cpu":
        reason = "the CPU, because ONNX Runtime has no provider for " if is_on_cpu(session) else ""
        log.info("%s runs on %s%s", user, reason, device)
    return session


def is_on_cpu(session: Any) -> bool:
    """Whether a session runs on the CPU. A provider whose libraries are missing is left out of a session."""
    return session.get_providers()[0] == _CPU_PROVIDER


def _output_field(name: str) -> bytes:
    """A serialized ModelProto with nothing but one float32 output of its graph.

    Concatenated protobuf messages are merged, and repeated fields appended: after a model, it adds the output to it.
    """
    float_tensor = _bytes_field(1, b"\x08\x01")  # TypeProto.tensor_type, with elem_type = FLOAT
    value_info = _bytes_field(1, name.encode()) + _bytes_field(2, float_tensor)
    return _bytes_field(7, _bytes_field(12, value_info))  # ModelProto.graph, GraphProto.output


def _bytes_field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of less than 128 bytes."""
    if len(content) > _MAX_ONE_BYTE_VARINT:
        raise ValueError(f"{len(content)} bytes do not fit a length of one byte\n  fix: use a shorter name of a value")
    return bytes([number << 3 | 2, len(content)]) + content
