"""How long a batch of a twin lasts: what the operator sets, else what a profile measured, else no time."""

import pytest

from mstar.config import OpSeconds
from mstar.engine.twin.op_times import OpTimes
from mstar.plan.profile import BatchCost, DeviceCosts, ModelProfile, OpCosts

COSTS = OpCosts(
    op="lm.step",
    mean_s=0.2,
    low=1.0,
    high=1.0,
    count=4,
    batches=[BatchCost(1, 1.0, 4), BatchCost(4, 2.0, 4)],
    by_length=[(1, 0.1), (11, 0.3)],
)


def make_profile(*costs, device="gpu"):
    ops = [each.op for each in costs]
    device_costs = DeviceCosts(device=device, source="measured", machine="", ops=list(costs))
    return ModelProfile(model="m", walks="", mstar="", recorded_at="", ops=ops, requests=[], devices=[device_costs])


def test_a_batch_lasts_as_its_calls_alone_times_the_ratio_of_its_size():
    times = OpTimes.from_profile(make_profile(COSTS), "", {})
    assert times.batch_s("lm.step", [1]) == pytest.approx(0.1)
    assert times.batch_s("lm.step", [6]) == pytest.approx(0.2)
    assert times.batch_s("lm.step", [1, 11, 1, 11]) == pytest.approx(0.4)


def test_a_set_time_overrides_the_profile_and_all_times_are_scaled():
    times = OpTimes.from_profile(make_profile(COSTS), "gpu", {"lm.step": OpSeconds(batch_s=1.0, position_s=0.1)}, 0.5)
    assert times.batch_s("lm.step", [2, 3]) == pytest.approx(0.75)


def test_an_unknown_op_and_one_that_never_ran_take_no_time():
    never = OpCosts(op="lm.other", mean_s=0.0, low=1.0, high=1.0, count=0)
    times = OpTimes.from_profile(make_profile(never), "", {})
    assert times.batch_s("lm.other", [5]) == times.batch_s("tts.speak", [5]) == 0.0


def test_static_arguments_are_not_part_of_the_name():
    costs = OpCosts(op="lm.step[mode='a']", mean_s=0.2, low=1.0, high=1.0, count=1)
    assert OpTimes.from_profile(make_profile(costs), "", {}).batch_s("lm.step", [1]) == pytest.approx(0.2)
