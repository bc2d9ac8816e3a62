"""Profiles: files, costs of batches and lengths, keys of calls, merging of machines, and roofline estimates."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mstar.errors import LoadError
from mstar.plan.profile import (
    ESTIMATE,
    MEASURED,
    BatchCost,
    DeviceCosts,
    ModelProfile,
    OpCosts,
    PackedValue,
    RecordedCall,
    RecordedOutput,
    RecordedRequest,
    call_key,
    extended_history,
    fingerprint_walks,
    new_history,
    op_name,
)
from mstar.plan.profile_merge import merge_profiles
from mstar.plan.roofline import OVERHEAD_S, DecoderSize, find_data_sheet
from tests.plan.plan_harness import example


def toy(device: str, cost: float, *, key: str = "k", walks: str = "w") -> ModelProfile:
    """One request with one call of length 8, which costs `cost`; the mean of its op is twice that at this length."""
    call = RecordedCall(0, key, 8, 0, PackedValue(b""))
    costs = DeviceCosts(device, MEASURED, "there", ops=[OpCosts("a.b", cost, 0.5, 1.5, 1, [], [(8, 2 * cost)])])
    costs.calls_s = [[cost]]
    outputs = [RecordedOutput("Audio", 0.5), RecordedOutput("Text", 1.0), RecordedOutput("Audio", 0.25)]
    request = RecordedRequest("chat", PackedValue(b"r"), [call], outputs)
    return ModelProfile(
        model="m", walks=walks, mstar="0", recorded_at="", ops=["a.b"], requests=[request], devices=[costs]
    )


# ---------------------------------------------------------------- files
def test_a_file_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "model.profile.json"
    toy("cpu", 1.0).save(path)
    assert ModelProfile.load(path) == toy("cpu", 1.0)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 99}', "[1]"])
def test_another_file_is_refused(text: str, tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(LoadError, match=r"x\.json.*\n  fix: write one with `mstar profile"):
        ModelProfile.load(path)


def test_a_newer_format_is_refused(tmp_path: Path):
    path = tmp_path / "x.json"
    msgspec.structs.replace(toy("cpu", 1.0), version=2).save(path)
    with pytest.raises(LoadError, match="version 2 of the format, this mstar reads 1"):
        ModelProfile.load(path)


def test_paths_that_cannot_be_read_or_written(tmp_path: Path):
    with pytest.raises(LoadError, match=r"cannot be read.*\n  fix: write one with"):
        ModelProfile.load(tmp_path / "missing.json")
    with pytest.raises(LoadError, match=r"cannot be written.*\n  fix: choose another path"):
        toy("cpu", 1.0).save(tmp_path / "missing" / "x.json")


# ---------------------------------------------------------------- what is found in a profile
def test_requests_calls_and_devices():
    profile = toy("cpu", 1.0)
    (request,) = profile.requests
    assert profile.kinds == ("chat",)
    assert request.amount("Audio") == 0.75
    assert [*profile.calls_of(0)] == [(0, 0, request.calls[0])]
    assert profile.device("cpu") is profile.devices[0]
    with pytest.raises(LoadError, match=r"has no device `gpu`\n  fix: use `cpu`"):
        profile.device("gpu")


def test_the_nearest_call_of_an_op():
    profile = toy("cpu", 1.0)
    short, long = (RecordedCall(0, "k", length, 0, PackedValue(b"")) for length in (4, 90))
    profile.requests.append(msgspec.structs.replace(profile.requests[0], calls=[short, long]))
    assert profile.nearest_call(0, 5) == short
    assert profile.nearest_call(0, 1000) == long
    assert profile.nearest_call(1, 5) is None


# ---------------------------------------------------------------- costs
def test_costs_by_size_and_length():
    costs = OpCosts("a.b", 1.0, 1.0, 1.0, 1, [BatchCost(1, 1.0, 1), BatchCost(4, 2.5, 1)], [(10, 1.0), (20, 3.0)])
    assert [costs.batch_ratio(size) for size in (1, 2, 4, 8)] == [1.0, 1.5, 2.5, 5.0]
    assert [costs.seconds_alone(length) for length in (1, 10, 15, 30)] == [1.0, 1.0, 2.0, 3.0]
    unmeasured = OpCosts("a.b", 1.5, 1.0, 1.0, 1)
    assert unmeasured.batch_ratio(8) == 8.0  # no gain is assumed
    assert unmeasured.seconds_alone(8) == 1.5


@pytest.mark.parametrize(("factor", "seconds"), [(-1.0, 1.0), (0.0, 2.0), (1.0, 3.0), (0.5, 2.5)])
def test_a_batch_within_its_error(factor: float, seconds: float):
    assert toy("cpu", 1.0).devices[0].batch_s(0, [1.0, 1.0], factor) == seconds


def test_workers_that_share_a_host():
    costs = DeviceCosts("cpu", MEASURED, "here")
    assert costs.shared_ratio(7) == 1.0
    costs.shared = [1.0, 1.5]
    assert [costs.shared_ratio(busy) for busy in (1, 2, 4)] == [1.0, 1.5, 3.0]  # beyond two the host is full
    assert not costs.is_estimate
    assert DeviceCosts("H100-80GB", ESTIMATE, "data sheet").is_estimate


# ---------------------------------------------------------------- identity
def test_a_fingerprint_is_that_of_the_walks():
    orpheus, bagel = (example(name)[0].graphs() for name in ("orpheus", "bagel"))
    assert fingerprint_walks(orpheus) == fingerprint_walks(example("orpheus")[0].graphs())
    assert fingerprint_walks(orpheus) != fingerprint_walks(bagel)


def test_keys_have_scalars_and_shapes():
    key = call_key("a.b", {"text": "x", "tokens": np.zeros(3), "parts": [1, 2], "opaque": object()}, ["h"])
    assert key == call_key("a.b", {"text": "x", "tokens": np.ones(3), "parts": [3, 4], "opaque": object()}, ["h"])
    others = (
        call_key("a.c", {"text": "x", "tokens": np.zeros(3), "parts": [1, 2], "opaque": object()}, ["h"]),
        call_key("a.b", {"text": "y", "tokens": np.zeros(3), "parts": [1, 2], "opaque": object()}, ["h"]),
        call_key("a.b", {"text": "x", "tokens": np.zeros(4), "parts": [1, 2], "opaque": object()}, ["h"]),
        call_key("a.b", {"text": "x", "tokens": np.zeros(3), "parts": [1], "opaque": object()}, ["h"]),
        call_key("a.b", {"text": "x", "tokens": np.zeros(3), "parts": [1, 2], "opaque": object()}, ["i"]),
    )
    assert len({key, *others}) == 6


def test_histories_depend_on_every_call_in_order():
    start = new_history("lm", "KVCache")
    assert start != new_history("tts", "KVCache")
    one, two = extended_history(start, "k1"), extended_history(start, "k2")
    assert extended_history(one, "k2") != extended_history(two, "k1")
    assert op_name("lm.decode[greedy=True]") == op_name("lm.decode") == "lm.decode"


# ---------------------------------------------------------------- several machines
def test_profiles_of_two_machines_are_merged():
    merged = merge_profiles([toy("cpu", 1.0), toy("gpu", 0.1)])
    assert [costs.device for costs in merged.devices] == ["cpu", "gpu"]
    assert merged.device("gpu").calls_s == [[0.1]]
    assert merge_profiles([toy("cpu", 1.0), toy("gpu", 0.1, key="x")]).device("gpu").calls_s == [[0.2]]  # by length


def test_profiles_of_other_models_are_not_merged():
    with pytest.raises(LoadError, match="have different walks"):
        merge_profiles([toy("cpu", 1.0), toy("gpu", 0.1, walks="v")])
    with pytest.raises(LoadError, match="two profiles have the device `cpu`"):
        merge_profiles([toy("cpu", 1.0), toy("cpu", 0.1)])
    with pytest.raises(LoadError, match=r"has no op a\.b\n  fix: profile it again"):
        merge_profiles([toy("cpu", 1.0), msgspec.structs.replace(toy("gpu", 0.1), ops=["a.c"])])


# ---------------------------------------------------------------- roofline
def test_a_decode_step_is_limited_by_memory_and_a_prompt_by_compute():
    sheet, size = find_data_sheet("H100-80GB"), DecoderSize(parameters=8_000_000_000, kv_entries=65_536)
    step = size.forward_s(sheet, rows=1, positions=1, depth=0) - OVERHEAD_S
    assert step == pytest.approx(16e9 / (0.75 * 3350e9), rel=1e-3)
    prompt = size.forward_s(sheet, rows=1, positions=4096, depth=0) - OVERHEAD_S
    assert prompt == pytest.approx(2 * 8e9 * 4096 / (0.5 * 989e12), rel=1e-3)
    assert size.forward_s(sheet, rows=64, positions=1, depth=4096) > 1.5 * (step + OVERHEAD_S)  # KV caches are read


def test_an_unknown_device_is_refused():
    with pytest.raises(LoadError, match=r"no data sheet of `H100-80G`.*H100-80GB"):
        find_data_sheet("H100-80G")
