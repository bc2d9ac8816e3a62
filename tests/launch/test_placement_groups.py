"""Ray placement groups: replicas are spread, other workers packed."""

import tomllib

import pytest

from mstar.plan.placement import Resources, parse_placement

ray_launcher = pytest.importorskip("mstar.launch.ray_launcher")


def make_placement(text):
    return parse_placement(tomllib.loads(text))


def test_replicas_are_spread_and_other_workers_packed():
    placement = make_placement('[place]\nlm = ["a", "b"]\nvae = "c"\n"lm.prefill" = ["b", "d", "e"]\nvit = "f"')
    other = make_placement('[place]\nlm = ["a", "c"]')
    initial_workers = ("a", "b", "c", "d", "e", "f")
    assert ray_launcher.plan_placement_groups([placement, other], initial_workers) == [
        (("a", "b"), "SPREAD"),
        (("d", "e"), "SPREAD"),
        (("c", "f"), "PACK"),
    ]


def test_no_resources_are_reserved_for_inactive_workers():
    placement = make_placement(
        '[place]\nlm = { workers = ["a", "b", "c"], min_replicas = 2 }\nvae = { workers = ["d"], min_replicas = 0 }'
    )
    assert ray_launcher.plan_placement_groups([placement], placement.initial_workers()) == [(("a", "b"), "SPREAD")]


@pytest.mark.parametrize(
    ("resources", "bundle"),
    [
        (Resources(), {"CPU": 1.0}),
        (Resources(cpus=4, gpus=0.5, custom={"tape": 2}), {"CPU": 4, "GPU": 0.5, "tape": 2}),
        (Resources(cpus=0, host="10.0.0.2"), {"node:10.0.0.2": 0.001}),
        (Resources(cpus=0), {"memory": 1.0}),
    ],
)
def test_resources_of_a_worker_as_a_bundle(resources, bundle):
    assert ray_launcher.to_ray_bundle(resources) == bundle
