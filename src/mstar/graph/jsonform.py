"""JSON serialization of a walk, for browsers and other tools. `from_json(to_json(walk)) == walk`.

Each dataclass becomes an object with its class name under `is`, each tuple an array. Source lines are included.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, cast

from mstar.graph import ir, types

_CLASSES = {
    cls.__name__: cls
    for cls in (
        *(types.TensorType, types.ObjectType, types.ListType, types.StateType),
        *(ir.Value, ir.Call, ir.New, ir.Fork, ir.Const, ir.Take, ir.Field, ir.Open, ir.Put, ir.Get, ir.Emit),
        *(ir.Carry, ir.Loop, ir.Windows, ir.Collect, ir.Each, ir.Arm, ir.Choose, ir.Walk),
    )
}


def to_json(walk: ir.Walk) -> str:
    """Serialize a walk to one line of JSON."""
    return json.dumps(_encode(walk), separators=(",", ":"))


def from_json(text: str) -> ir.Walk:
    """Parse the result of `to_json`."""
    walk = _decode(json.loads(text))
    if not isinstance(walk, ir.Walk):
        raise ValueError(f"the JSON is a {type(walk).__name__}, not a Walk\n  fix: pass the result of to_json")
    return walk


def _encode(part: Any) -> Any:
    cls: type[Any] = cast("Any", type(part))
    if cls.__name__ in _CLASSES:
        return {"is": cls.__name__} | {f.name: _encode(getattr(part, f.name)) for f in fields(cls)}
    if isinstance(part, tuple):
        return [_encode(item) for item in cast("tuple[Any, ...]", part)]
    return part


def _decode(part: Any) -> Any:
    if isinstance(part, dict):
        members = cast("dict[str, Any]", part)
        return _CLASSES[members["is"]](**{key: _decode(item) for key, item in members.items() if key != "is"})
    if isinstance(part, list):
        return tuple(_decode(item) for item in cast("list[Any]", part))
    return part
