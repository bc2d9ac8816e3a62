"""Profiles of one model from several machines as one, with the devices of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mstar.errors import LoadError
from mstar.plan.profile import DeviceCosts, ModelProfile, RecordedRequest


def merge_profiles(profiles: Sequence[ModelProfile]) -> ModelProfile:
    """The requests of the first profile with the costs of all. Raises LoadError if they are of different models.

    A call of the first profile that another one recorded too, with the same key in the same request, has its cost
    there; any other has the mean cost of its op at its length.
    """
    first, *others = profiles
    devices = list(first.devices)
    for other in others:
        if other.walks != first.walks:
            problem = f"the profiles of {first.model} and {other.model} have different walks"
            raise LoadError(f"{problem}\n  fix: profile the same version of the model on both machines")
        numbers = {name: number for number, name in enumerate(other.ops)}
        if missing := [name for name in first.ops if name not in numbers]:
            raise LoadError(f"a profile of {other.model} has no op {missing[0]}\n  fix: profile it again")
        for costs in other.devices:
            if any(costs.device == known.device for known in devices):
                fix = "give one of them another name with --device-name"
                raise LoadError(f"two profiles have the device `{costs.device}`\n  fix: {fix}")
            devices.append(_costs_of(first, other, costs, numbers))
    return msgspec.structs.replace(first, devices=devices)


def _costs_of(first: ModelProfile, other: ModelProfile, costs: DeviceCosts, numbers: dict[str, int]) -> DeviceCosts:
    """Costs of the calls of the first profile on a device of another one."""
    calls_s: list[list[float]] = []
    for number, request in enumerate(first.requests):
        twin = other.requests[number] if number < len(other.requests) else None
        is_same = twin is not None and twin.request == request.request
        known = _costs_by_key(twin, costs.calls_s[number]) if twin is not None and is_same else {}
        calls_s.append(
            [
                known[call.key]
                if call.key in known
                else costs.ops[numbers[first.ops[call.op]]].seconds_alone(call.length)
                for call in request.calls
            ]
        )
    ops = [costs.ops[numbers[name]] for name in first.ops]
    return msgspec.structs.replace(costs, calls_s=calls_s, ops=ops)


def _costs_by_key(request: RecordedRequest, calls_s: Sequence[float]) -> dict[str, float]:
    return {call.key: seconds for call, seconds in zip(request.calls, calls_s, strict=True)}
