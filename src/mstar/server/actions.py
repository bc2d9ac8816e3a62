"""Robots: what they see comes in, a chunk of actions goes out. Over HTTP, and over WebSocket as openpi's clients speak.

A model may say what its robot is like with a method `robot()`: a mapping for clients. If that names the fields of an
observation under "observation", each with "dtype" and "shape", then what comes is held against it: a robot that sends
a field under another name must hear of it, and not move. Nothing is kept between two observations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, cast

import msgspec
from starlette.responses import PlainTextResponse, Response

from mstar.asks import Acting
from mstar.server import arrays, openpi
from mstar.server.calls import Call
from mstar.server.door import Served
from mstar.server.live import Deliver, Live
from mstar.server.pacing import at_rate
from mstar.server.reading import request_of
from mstar.server.refusals import Refusal
from mstar.server.visit import Visit, answered, refuse_crowded

MSGPACK = "application/msgpack"
LONGEST = 4096
"""How many actions a chunk may have, and a delay may be."""
_NAMES = {"prev_chunk_left_over": "leftover", "inference_delay": "delay", "execution_horizon": "horizon"}
"""What robots call the fields of `Acting`."""


# ---------------------------------------------------------------- over HTTP
async def act(visit: Visit) -> Response:
    """POST /v1/actions."""
    told = await read_map(visit)
    served = visit.find(str(told.pop("model", "")))
    ask = asked(served, {_NAMES.get(name, name): value for name, value in told.items()})
    begun = time.perf_counter()
    actions = await chunk(visit.open(served, ask))
    timing = {"infer_ms": (time.perf_counter() - begun) * 1e3}
    return written(visit, {"model": served.name, **actions, "server_timing": timing})


async def robot(visit: Visit) -> Response:
    """GET /v1/actions/metadata?model=."""
    served = visit.find(visit.request.query_params.get("model", ""))
    return written(visit, {"model": served.name, **robot_of(served)})


async def healthz(_: Visit) -> Response:
    """GET /healthz, which clients of openpi ask for."""
    return PlainTextResponse("OK")


async def read_map(visit: Visit) -> dict[str, Any]:
    """The body, which is a map in JSON, or in msgpack as openpi writes it."""
    content = await visit.body()
    try:
        match visit.media_type:
            case "application/json":
                refuse_crowded(content)
                value = msgspec.json.decode(content)
            case "application/msgpack":
                value = openpi.unpack(content)
            case other:
                what = f"the content type is {other!r}; application/json or {MSGPACK} is needed"
                raise Refusal(415, "unsupported_media_type", what)
    except (ValueError, RecursionError):
        raise Refusal(400, "invalid_body", "the body cannot be decoded") from None
    if not isinstance(value, dict):
        raise Refusal(422, "invalid_value", "the body must be an object")
    return cast("dict[str, Any]", value)


def written(visit: Visit, content: Mapping[str, Any], status: int = 200) -> Response:
    """An answer in the language of the question."""
    if MSGPACK in (visit.media_type, visit.request.headers.get("accept")):
        return Response(openpi.pack(content), status, media_type=MSGPACK)
    return answered(arrays.plain(content, arrays.in_base64), status)


# ---------------------------------------------------------------- over WebSocket
async def speak_openpi(call: Call) -> None:
    """The whole of a call as openpi's clients hold it: an error is a text, and then the call is over."""
    served = call.find_only()
    if (hz := call.socket.query_params.get("hz")) is not None:
        call.passage.pace = at_rate(call.passage.pace, hz)
    await call.accept()
    await call.tell(openpi.pack(robot_of(served)))
    count, total = 0, None
    while True:
        heard = await call.heard()
        begun = time.perf_counter()
        try:
            ask = replace(asked(served, _observed(heard)), seed=count)  # these clients bring none
            with call.opened(served, ask) as live:
                actions = await chunk(live)
        except Refusal as refusal:
            await call.tell(refusal.message)
            await call.hang_up(1011, refusal.code)  # whatever it was: so do openpi's own servers
            return
        timing = {"infer_ms": (time.perf_counter() - begun) * 1e3}
        if total is not None:
            timing["prev_total_ms"] = total
        await call.tell(openpi.pack({**actions, "server_timing": timing}))
        count, total = count + 1, (time.perf_counter() - begun) * 1e3


def _observed(heard: str | bytes) -> dict[str, Any]:
    """An observation as openpi has it: one flat map, with the task among it."""
    try:
        seen = openpi.unpack(heard) if isinstance(heard, bytes) else None
    except arrays.BadArray as error:
        raise Refusal(400, "invalid_body", str(error)) from None
    if not isinstance(seen, dict):
        raise Refusal(400, "invalid_body", "an observation is a map in msgpack")
    observation = cast("dict[str, Any]", seen)
    return {"prompt": observation.pop("prompt", ""), "observation": observation}


# ---------------------------------------------------------------- both
def robot_of(served: Served) -> Mapping[str, Any]:
    """What a model says of its robot."""
    tell = served.own("robot")
    return tell() if tell is not None else {}


def asked(served: Served, fields: Mapping[str, Any]) -> Acting:
    """What a model is asked for. Raises Refusal."""
    ask: Acting = request_of(replace(served, request=Acting), dict(fields))
    if not (0 <= ask.delay <= LONGEST and 0 <= ask.horizon <= LONGEST):
        what = f"inference_delay and execution_horizon are from 0 to {LONGEST}, and are {ask.delay} and {ask.horizon}"
        raise Refusal(422, "invalid_value", what, param="inference_delay")
    declared = robot_of(served).get("observation")
    if declared is not None:
        _hold_against(declared, ask.observation)
    for name, value in (*ask.observation.items(), ("prev_chunk_left_over", ask.leftover)):
        refuse_infinite(name, value)
    return ask


def _hold_against(declared: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    missing, unknown = sorted(declared.keys() - seen.keys()), sorted(seen.keys() - declared.keys())
    if missing or unknown:
        what = f"the observation lacks {missing} and has {unknown}, which nobody reads; it needs {sorted(declared)}"
        raise Refusal(422, "invalid_observation", what, param="observation")
    for name, wanted in declared.items():
        value = seen[name]
        shown = f"{value.dtype.name}{list(value.shape)}" if arrays.is_array(value) else type(value).__name__
        needed = f"{wanted['dtype']}{list(wanted['shape'])}"
        if shown != needed:
            what = f"`{name}` is {shown}, and {needed} is needed"
            raise Refusal(422, "invalid_observation", what, param=f"observation.{name}")


def refuse_infinite(name: str, value: Any) -> None:
    """Refuse an array in which something is not a number, or not finite."""
    if not _is_finite(value):
        raise Refusal(422, "invalid_value", f"`{name}` is not finite everywhere", param=name)


def _is_finite(value: Any) -> bool:
    is_float = arrays.is_array(value) and "float" in str(value.dtype)
    return not is_float or 0 in value.shape or bool(abs(value).max() < inf)


async def chunk(live: Live) -> dict[str, Any]:
    """The actions of a request, and how many of them there are in a second."""
    last: Deliver | None = None
    async for news in live:
        if isinstance(news, Deliver) and news.kind == "Action":
            last = news
    if last is None:
        raise Refusal(500, "model_error", "the model gave no action")
    if not _is_finite(last.value):
        raise Refusal(500, "model_error", "the model gave an action that is not finite")
    return {"actions": last.value, **dict(last.clock)}
