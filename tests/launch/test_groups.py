"""How workers are distributed over hosts, in what Ray is told."""

import tomllib

import pytest

from mstar.plan.placement import Share, parse_placement

cluster = pytest.importorskip("mstar.launch.cluster")


def placed(text):
    return parse_placement(tomllib.loads(text))


def test_replicas_are_apart_and_the_others_together():
    one = placed('[place]\nlm = ["a", "b"]\nvae = "c"\n"lm.prefill" = ["b", "d", "e"]\nvit = "f"')
    two = placed('[place]\nlm = ["a", "c"]')
    first = ("a", "b", "c", "d", "e", "f")
    assert cluster.groups([one, two], first) == [(("a", "b"), "SPREAD"), (("d", "e"), "SPREAD"), (("c", "f"), "PACK")]


def test_no_room_is_kept_for_who_rests():
    one = placed('[place]\nlm = { workers = ["a", "b", "c"], least = 2 }\nvae = { workers = ["d"], least = 0 }')
    assert cluster.groups([one], one.first_workers()) == [(("a", "b"), "SPREAD")]


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        (Share(), {"CPU": 1.0}),
        (Share(cpus=4, gpus=0.5, resources={"tape": 2}), {"CPU": 4, "GPU": 0.5, "tape": 2}),
        (Share(cpus=0, host="10.0.0.2"), {"node:10.0.0.2": 0.001}),
        (Share(cpus=0), {"memory": 1.0}),
    ],
)
def test_what_a_worker_takes_of_a_host(share, wanted):
    assert cluster.bundle(share) == wanted
