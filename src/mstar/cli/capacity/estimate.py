"""Estimates in a profile: costs of its recorded calls on devices that are not here, from their data sheets.

The forwards of decoders are estimated by `plan.roofline`. Every other op keeps its measured cost: it runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from mstar.cli.capacity.candidates import component_of
from mstar.errors import LoadError, format_names
from mstar.nn.published_sizes import PUBLISHED, find_published
from mstar.plan.profile import ESTIMATE, BatchCost, DeviceCosts, ModelProfile, OpCosts, RecordedCall, op_name
from mstar.plan.roofline import (
    BATCH_SIZES,
    HIGH,
    LOW,
    WEIGHT_BYTES,
    DataSheet,
    DecoderSize,
    find_data_sheet,
)
from mstar.walk.model import Model


def published_decoder(name: str) -> DecoderSize:
    """Size of the language model of a published model. Raises LoadError."""
    published = find_published(name)
    if published is None:
        raise LoadError(f"the size of {name} is not known\n  fix: use one of {format_names(PUBLISHED)}")
    size = next(size for size in published.components.values() if size.kv is not None)
    return DecoderSize(size.parameters, size.with_settings({"dtype": "bfloat16"}).position_bytes // WEIGHT_BYTES)


def decoder_sizes(model: Model, replaced: Mapping[str, str]) -> dict[str, DecoderSize]:
    """Sizes of the decoders of a loaded model, from their recorded graphs; `replaced` names a published one instead."""
    sizes: dict[str, DecoderSize] = {}
    for name, component in model.components().items():
        if name in replaced:
            sizes[name] = published_decoder(replaced[name])
            continue
        decoder: Any = vars(component).get("decoder")  # loaded, if the component has one
        captured = getattr(decoder, "captured", None)
        if captured is not None and captured.parameter_count:
            store = decoder.store
            sizes[name] = DecoderSize(captured.parameter_count, store.position_bytes // store.keys[0].element_size())
    return sizes


def add_estimates(profile: ModelProfile, model: Model, devices: Iterable[str], replaced: Mapping[str, str]) -> None:
    """Add estimated costs of these devices to a measured profile. Raises LoadError."""
    sizes = decoder_sizes(model, replaced)
    ops = forward_ops(model, sizes)
    if not any(op in ops for op in profile.ops):
        problem = f"{profile.model} has no decoder whose size is known"
        raise LoadError(f"{problem}\n  fix: profile it on the device itself")
    for device in devices:
        profile.devices.append(estimate(profile, device, {op: sizes[component_of(op)] for op in ops}))


def forward_ops(model: Model, sizes: Iterable[str]) -> set[str]:
    """Ops that run a forward of a decoder: those that write to a state."""
    components = model.components()
    return {
        f"{name}.{op_name}"
        for name in sizes
        for op_name, op in components[name].ops().items()
        if any(op.states.values())
    }


def estimate(profile: ModelProfile, device: str, sizes: Mapping[str, DecoderSize]) -> DeviceCosts:
    """Costs on a device, by the sizes of the decoders of the ops that run one."""
    sheet, measured = find_data_sheet(device), profile.devices[0]
    calls_s = [
        [
            _call_s(sheet, sizes[op], call) if (op := op_name(profile.ops[call.op])) in sizes else seconds
            for call, seconds in zip(request.calls, own, strict=True)
        ]
        for request, own in zip(profile.requests, measured.calls_s, strict=True)
    ]
    ops = [
        _op_costs(profile, number, sheet, sizes[op_name(name)], calls_s) if op_name(name) in sizes else costs
        for number, (name, costs) in enumerate(zip(profile.ops, measured.ops, strict=True))
    ]
    others = format_names(name for name in profile.ops if op_name(name) not in sizes)
    note = (
        f"Roofline with an error of {100 * (LOW - 1):+.0f} % to {100 * (HIGH - 1):+.0f} %. Ops that are no forward of "
        f"a decoder keep their cost on {measured.device}: {others}."
    )
    return DeviceCosts(device, ESTIMATE, sheet.source, "cuda", ops, calls_s, note)


def _call_s(sheet: DataSheet, size: DecoderSize, call: RecordedCall) -> float:
    return size.forward_s(sheet, 1, call.length, call.depth)


def _op_costs(
    profile: ModelProfile, op: int, sheet: DataSheet, size: DecoderSize, calls_s: list[list[float]]
) -> OpCosts:
    calls = [(call, calls_s[number][index]) for number, index, call in profile.calls_of(op)]
    if not calls:
        return OpCosts(profile.ops[op], 0.0, LOW, HIGH, 0)
    steps = [call for call, _ in calls if call.length == 1] or [call for call, _ in calls]
    length, depth = round(fmean(call.length for call in steps)), fmean(call.depth for call in steps)
    alone = size.forward_s(sheet, 1, length, depth)
    batches = [BatchCost(rows, size.forward_s(sheet, rows, length, depth) / alone, 0) for rows in BATCH_SIZES]
    by_length: dict[int, list[float]] = {}
    for call, seconds in calls:
        by_length.setdefault(call.length, []).append(seconds)
    lengths = [(each, fmean(seconds)) for each, seconds in sorted(by_length.items())]
    return OpCosts(profile.ops[op], fmean(seconds for _, seconds in calls), LOW, HIGH, 0, batches, lengths)
