"""Benchmarks that count: five runs of a commit do all of the work, each a fifth."""

from bench.parts import PARTS, Parts, part_of


def test_all_parts_together_are_the_whole():
    work = list(range(23))
    assert sorted(item for part in range(PARTS) for item in part_of(work, part)) == work


def test_parts_are_run_in_turn(checkout):
    for runs in range(PARTS + 1):
        parts = Parts("toy", checkout.root)
        assert parts.next == runs % PARTS
        assert len(parts.done()) == runs % PARTS
        checkout.add_runs(1.0)


def test_only_clean_runs_of_the_commit_count(checkout):
    checkout.add_runs(1.0)
    checkout.add_runs(1.0, is_clean=False)
    checkout.add_runs(1.0, claim=None)
    assert Parts("toy", checkout.root).next == 1
    checkout.make_commit()
    assert Parts("toy", checkout.root).next == 0
