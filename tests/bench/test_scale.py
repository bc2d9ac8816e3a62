"""`python -m bench scale` with few streams: all sizes are measured, calls end ok, also when workers die."""

import pytest

from bench.scale import headline
from bench.scale.headline import Deployment, Measured, deployments
from bench.scale.shard import CHUNK, CORES, REQUEST, TURN, Shard, ShardCost, ShardLoad


def test_sizes_are_powers_of_ten_with_as_many_streams_per_worker_and_conductor():
    sizes = [*deployments(1_000_000, 1_000, 8, 60.0)]
    assert [(size.streams, size.workers, size.shards, size.dying_workers) for size in sizes] == [
        (1_000, 1, 1, 0),
        (10_000, 10, 1, 0),
        (100_000, 100, 1, 0),
        (1_000_000, 1_000, 8, 0),
        (1_000_000, 1_000, 8, 10),
    ]


def test_the_shards_of_a_deployment_share_its_streams_workers_and_deaths():
    loads = [*Deployment(1_000, 10, 3, 5.0, 2).loads()]
    assert sum(load.streams for load in loads) == 1_000
    assert sorted(load.workers for load in loads) == [3, 3, 4]
    assert sum(load.dying_workers for load in loads) == 2


@pytest.fixture(scope="module")
def cost():
    return Shard(ShardLoad(streams=100, workers=2, seconds=20.0, dying_workers=1)).run()


def test_calls_go_on_when_a_worker_dies_and_is_replaced(cost):
    assert cost.statuses.keys() == {"ok"}
    assert cost.statuses["ok"] == cost.requests > 3
    assert 0.7 < cost.chunks / (100 * 20.0 / 7.0) < 1.3, "a stream gets a chunk every 7 s"


def test_each_core_is_measured_for_each_kind_of_work(cost):
    assert {(core, work) for core in CORES for work in (CHUNK, TURN, REQUEST)} - cost.core_s.keys() <= {
        ("conductor", CHUNK)  # outputs do not pass the conductor
    }
    assert cost.cpu_s == pytest.approx(sum(cost.core_s.values()))


def test_a_process_of_its_own_measures_the_memory_of_its_streams():
    cost = headline.simulate(ShardLoad(streams=2_000, workers=2, seconds=1.0, dying_workers=0), 0)
    assert 1_000 < cost.bytes / 2_000 < 50_000


def test_a_cost_survives_json(cost):
    assert ShardCost.from_json(cost.to_json()) == cost


def test_the_claim_compares_the_largest_size_with_the_smallest(monkeypatch, capsys):
    def measure(deployment):
        us = {1_000: 100.0, 10_000: 150.0 if deployment.dying_workers else 120.0}[deployment.streams]
        cost = ShardCost(events=1, chunks=1, bytes=1)
        cost.core_s["worker", CHUNK] = us * deployment.streams / 1e6
        cost.statuses["ok"] = 1
        return Measured(deployment, cost, 1, 1.0)

    monkeypatch.setattr(headline, "measure", measure)
    claim = headline.scale()
    assert (claim.value, claim.is_met) == (1.2, True)
    assert claim.details["us_per_stream_dying"] == 150
    assert "10,000" in capsys.readouterr().out
    monkeypatch.setattr(headline, "TARGET", 1.1)
    assert not headline.scale().is_met
