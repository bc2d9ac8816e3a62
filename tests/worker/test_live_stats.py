"""What a worker notes for those who look on: everything since they last asked, and nothing while nobody does."""

from math import inf
from types import SimpleNamespace as Thing

from mstar.plan.tables import Call
from mstar.wire.messages import Peer, StartWalk
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.stats.live_stats import VIEWER_TTL_S, LiveStats, WorkerSnapshot

VIEWER, OTHER_VIEWER = Peer("front", 0), Peer("other", 0)


def ready_call(rid, at, walk="speak", number=0):
    start = StartWalk(rid, 0, number, "m", walk, (), {}, {}, VIEWER)
    tour = WalkRun(None, WorkerRequest(rid, 0, None), start, None, 0)
    return ReadyCall(tour, None, Thing(detail=Call(0, (), (), (), at)), 0.0)


def snapshot(*waiting, requests=(), running=()):
    return WorkerSnapshot({"requests": 1}, waiting, running, inf, requests)


def test_nothing_is_recorded_without_viewers():
    watch = LiveStats()
    assert not watch
    watch.on_batch([ready_call("r", 0)], 0.1)
    watch.on_transfer(Peer("w1", 0), 0.1)
    news = watch.build_activity(1.0, VIEWER, 7, snapshot())
    assert (news.correlation_id, news.ops, news.positions, news.transfers, news.counts) == (
        7,
        [],
        [],
        [],
        {"requests": 1},
    )
    assert watch


def test_batches_are_counted_by_call_and_every_request_has_a_position():
    watch = LiveStats()
    watch.build_activity(1.0, VIEWER, 0, snapshot())
    watch.on_batch([ready_call("r", 0), ready_call("s", 0), ready_call("t", 3, "think", 2)], 0.3)
    watch.on_batch([ready_call("r", 1)], 0.1)
    watch.on_transfer(Peer("w1", 0), 0.01)
    watch.on_transfer(Peer("w1", 0), 0.02)
    news = watch.build_activity(
        2.0, VIEWER, 1, snapshot(ready_call("s", 1), ready_call("u", 0), running=[ready_call("t", 4, "think", 2)])
    )
    told = {
        (op.walk, op.call_index): (op.batches, op.calls, op.max_batch_size, round(op.busy_s, 6), op.ready_calls)
        for op in news.ops
    }
    assert told == {
        ("speak", 0): (1, 2, 3, 0.2, 1),
        ("think", 3): (1, 1, 3, 0.1, 0),
        ("speak", 1): (1, 1, 1, 0.1, 1),
    }
    where = {one.rid: (one.walk_index, one.call_index) for one in news.positions}
    assert where == {
        "r": (0, 1),
        "s": (0, 1),
        "t": (2, 4),
        "u": (0, 0),
    }  # who waits, or runs, is there; who not, where it was
    assert [(one.to, one.count) for one in news.transfers] == [("w1", 2)]
    assert watch.build_activity(3.0, VIEWER, 2, snapshot()).ops == []


def test_each_viewer_gets_everything_and_expires_when_silent():
    watch = LiveStats()
    watch.build_activity(1.0, VIEWER, 0, snapshot())
    watch.build_activity(1.0, OTHER_VIEWER, 0, snapshot())
    watch.on_batch([ready_call("r", 0)], 0.1)
    assert len(watch.build_activity(2.0, VIEWER, 1, snapshot()).ops) == 1
    assert len(watch.build_activity(2.5, OTHER_VIEWER, 1, snapshot()).ops) == 1
    watch.expire(2.1 + VIEWER_TTL_S)
    watch.on_batch([ready_call("r", 0)], 0.1)
    assert watch.build_activity(5.0, VIEWER, 2, snapshot()).ops == []
    watch.expire(6.0 + VIEWER_TTL_S)
    assert not watch


def test_a_stream_is_as_full_as_the_fullest():
    plan = Thing(streams=(("~words", 32),))

    def guest(rid, *items):
        it = ready_call(rid, 0).walk_run
        it.plan = plan
        ends = {number: Thing(source=(0, 0), items=[0] * count) for number, count in enumerate(items)}
        it.runs = {0: Thing(readers=ends)}
        it.request.walk_run = it
        return it.request

    news = LiveStats().build_activity(1.0, VIEWER, 0, snapshot(requests=[guest("r", 2, 5), guest("s", 1)]))
    (one,) = news.streams
    assert (one.model, one.walk, one.stream, one.items, one.capacity, one.requests) == (
        "m",
        "speak",
        "~words",
        5,
        32,
        2,
    )
