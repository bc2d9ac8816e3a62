"""How workers are distributed over hosts, in what Ray is told."""

import tomllib

import pytest

from mstar.plan.placement import Resources, parse_placement

cluster = pytest.importorskip("mstar.launch.ray_launcher")


def make_placement(text):
    return parse_placement(tomllib.loads(text))


def test_replicas_are_apart_and_the_others_together():
    one = make_placement('[place]\nlm = ["a", "b"]\nvae = "c"\n"lm.prefill" = ["b", "d", "e"]\nvit = "f"')
    two = make_placement('[place]\nlm = ["a", "c"]')
    first = ("a", "b", "c", "d", "e", "f")
    assert cluster.plan_placement_groups([one, two], first) == [
        (("a", "b"), "SPREAD"),
        (("d", "e"), "SPREAD"),
        (("c", "f"), "PACK"),
    ]


def test_no_resources_are_reserved_for_inactive_workers():
    one = make_placement(
        '[place]\nlm = { workers = ["a", "b", "c"], min_replicas = 2 }\nvae = { workers = ["d"], min_replicas = 0 }'
    )
    assert cluster.plan_placement_groups([one], one.initial_workers()) == [(("a", "b"), "SPREAD")]


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        (Resources(), {"CPU": 1.0}),
        (Resources(cpus=4, gpus=0.5, custom={"tape": 2}), {"CPU": 4, "GPU": 0.5, "tape": 2}),
        (Resources(cpus=0, host="10.0.0.2"), {"node:10.0.0.2": 0.001}),
        (Resources(cpus=0), {"memory": 1.0}),
    ],
)
def test_what_a_worker_takes_of_a_host(share, wanted):
    assert cluster.to_ray_bundle(share) == wanted
