"""Validation of V-JEPA 2-AC requests: observation fields and planner limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar.errors import Unsupported
from mstar.models.vjepa2.cem import CemParams
from mstar.requests import ActionRequest

OBSERVATION_FIELDS = {
    "image": "uint8 [height, width, 3], or a clip of such images, of which the last is used",
    "pose": "float32 [7]: position, three angles in radians, gripper closure",
    "goal": "an image, for a plan",
    "action": "float32 [7]: the executed action, in all observations of a session except the first",
    "candidates": "int",
    "rounds": "int",
    "elites": "int",
}
"""Fields of an observation. The planner parameters are optional."""
_LIMITS = {"horizon": (1, 64), "candidates": (2, 4096), "rounds": (1, 256), "elites": (2, 4096)}


def parse_observation(observation: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return an observation with the last image of each clip. Raises Unsupported for missing or unknown fields."""
    fields = dict(observation)
    missing, unknown = (
        sorted({"image", "pose", *required} - fields.keys()),
        sorted(fields.keys() - OBSERVATION_FIELDS.keys()),
    )
    if missing or unknown:
        what = f"the observation has missing fields {missing} and unknown fields {unknown}"
        raise Unsupported(f"{what}\n  fix: send the missing fields, and no others than {sorted(OBSERVATION_FIELDS)}")
    for name in ("image", "goal"):
        if name in fields and len(fields[name].shape) == 4:
            fields[name] = fields[name][-1]
    for name in ("pose", "action"):
        if name in fields:
            fields[name] = to_float32(fields[name]).reshape(7)
    return fields


def parse_cem_params(observation: Mapping[str, Any], request: ActionRequest) -> CemParams:
    """Return the planner parameters. Raises Unsupported for values outside their limits."""
    candidates = int(observation.get("candidates", 64))
    params = {"horizon": request.horizon or 2, "candidates": candidates, "rounds": int(observation.get("rounds", 5))}
    params["elites"] = int(observation.get("elites", max(2, candidates // 8)))
    for name, (minimum, maximum) in _LIMITS.items():
        if not minimum <= params[name] <= maximum or params["elites"] > candidates:
            what = f"planner parameters {params}: {name} must be {minimum} to {maximum}, elites at most candidates"
            raise Unsupported(f"{what}\n  fix: send values within these limits")
    return CemParams(**params, seed=request.seed)


def to_float32(values: Any) -> Any:
    """Convert to a float32 array."""
    import numpy as np

    return np.asarray(values, np.float32)
