"""What clients of V-JEPA 2-AC send, held against what it understands. Nothing is looked at or computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar.errors import Unsupported
from mstar.models.vjepa2.cem import CemParams
from mstar.requests import ActionRequest

OBSERVATION_FIELDS = {
    "image": "uint8 [height, width, 3], or a clip of such pictures, of which the last counts",
    "pose": "float32 [7]: place, three angles in radians, how far the hand is closed",
    "goal": "a picture, for a plan",
    "action": "float32 [7]: what was carried out since, in all observations of a session but the first",
    "candidates": "int",
    "rounds": "int",
    "elites": "int",
}
"""Of an observation; those that say how to search for a plan may be left out."""
_LIMITS = {"horizon": (1, 64), "candidates": (2, 4096), "rounds": (1, 256), "elites": (2, 4096)}


def parse_observation(observation: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """An observation with the last pictures of clips. Raises Unsupported for what is not understood."""
    seen = dict(observation)
    missing, unknown = (
        sorted({"image", "pose", *required} - seen.keys()),
        sorted(seen.keys() - OBSERVATION_FIELDS.keys()),
    )
    if missing or unknown:
        what = f"the observation lacks {missing} and has {unknown}, which nobody reads"
        raise Unsupported(f"{what}\n  fix: give what it lacks, and of the rest only {sorted(OBSERVATION_FIELDS)}")
    for name in ("image", "goal"):
        if name in seen and len(seen[name].shape) == 4:
            seen[name] = seen[name][-1]
    for name in ("pose", "action"):
        if name in seen:
            seen[name] = to_float32(seen[name]).reshape(7)
    return seen


def parse_cem_params(observation: Mapping[str, Any], request: ActionRequest) -> CemParams:
    """How to search for a plan. Raises Unsupported for more than is done."""
    candidates = int(observation.get("candidates", 64))
    wishes = {"horizon": request.horizon or 2, "candidates": candidates, "rounds": int(observation.get("rounds", 5))}
    wishes["elites"] = int(observation.get("elites", max(2, candidates // 8)))
    for name, (least, most) in _LIMITS.items():
        if not least <= wishes[name] <= most or wishes["elites"] > candidates:
            what = f"{name} is from {least} to {most}, elites are among the candidates, and these are {wishes}"
            raise Unsupported(f"{what}\n  fix: ask for as many as it does")
    return CemParams(**wishes, seed=request.seed)


def to_float32(values: Any) -> Any:
    """Numbers as float32."""
    import numpy as np

    return np.asarray(values, np.float32)
