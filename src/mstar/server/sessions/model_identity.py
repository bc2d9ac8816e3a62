"""Identity of a model: its name and a hash of what determines its outputs.

The hash covers the walks, the weight files that components declare, and the checksum of a checkpoint if the model has
the method `weights_checksum`. It does not cover the code of ops, sampling defaults, nor the machine.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib

from mstar.graph.text import fingerprint
from mstar.server.errors import ApiError
from mstar.server.sessions.session_file import ModelIdentity
from mstar.server.state import ServedModel


async def identify_model(served: ServedModel) -> ModelIdentity:
    """The identity of a served model. Checksums of large checkpoints take a while the first time."""
    return ModelIdentity(served.name, await asyncio.to_thread(_compute_version, served))


@functools.lru_cache(maxsize=64)
def _compute_version(served: ServedModel) -> str:
    parts = [type(served.model).__name__]
    parts += [f"{name} {fingerprint(graph)}" for name, graph in sorted(served.model.graphs().items())]
    for name, component in sorted(served.model.components().items()):
        parts += [f"{name} {getattr(file, 'sha256', '')}" for file in component.weights]
    if (weights_checksum := served.optional_method("weights_checksum")) is not None:
        parts.append(str(weights_checksum()))
    if served.adapter is not None:
        parts.append(served.adapter.checksum)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def require_same_model(needed: ModelIdentity, served: ModelIdentity) -> None:
    """Raise ApiError unless the model of a session file is the served one."""
    if needed.version != served.version:
        message = (
            f"the session needs version {needed.version[:12]} of the model `{needed.name}`, this server has "
            f"{served.version[:12]}: its walks or weights differ. fix: import it where the same model is served"
        )
        raise ApiError(409, "model_mismatch", message, param="model")
