"""Which models are conducted together."""

from mstar.plan.placement import parse_placement
from mstar.plan.shards import Shard, split_into_shards


def placements(**workers):
    return {model: parse_placement({"place": {"lm": names}}) for model, names in workers.items()}


def models(placed, most):
    return [one.models for one in split_into_shards(placed, most)]


def test_models_that_share_a_worker_stay_together():
    placed = placements(one=["a"], two=["b"], three=["c", "a"], four=["d"])
    assert models(placed, 3) == [("one", "three"), ("two",), ("four",)]
    chained = placements(one=["a"], two=["b"], three=["a", "b"], four=["c"])
    assert models(chained, 9) == [("one", "two", "three"), ("four",)]


def test_there_are_no_more_than_wanted_and_they_are_of_like_size():
    placed = placements(one=["a"], two=["b"], three=["c"], four=["d"], five=["d"])
    assert models(placed, 1) == [("one", "two", "three", "four", "five")]
    assert models(placed, 2) == [("three", "four", "five"), ("one", "two")]
    assert [len(one) for one in models(placed, 3)] == [2, 2, 1]


def test_a_shard_knows_its_workers_and_which_run_from_the_start():
    placed = placements(one={"workers": ["a", "b"], "min_replicas": 1}, two=["c"])
    assert split_into_shards(placed, 2) == [Shard(("one",), ("a", "b"), ("a",)), Shard(("two",), ("c",), ("c",))]


def test_models_without_a_placement_share_a_worker():
    assert models({"one": parse_placement({}), "two": parse_placement({})}, 2) == [("one", "two")]


def test_without_models_there_is_one_that_conducts_nothing():
    assert split_into_shards({}, 3) == [Shard((), (), ())]
