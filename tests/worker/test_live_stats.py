"""Live view: activity since each viewer's last poll, and no recording without viewers."""

from math import inf
from types import SimpleNamespace as Thing

from mstar.plan.tables import Call
from mstar.wire.messages import Peer, StartWalk
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.stats.live_stats import VIEWER_TTL_S, LiveStats, WorkerSnapshot

VIEWER, OTHER_VIEWER = Peer("front", 0), Peer("other", 0)


def ready_call(rid, call_index, walk="speak", number=0):
    start = StartWalk(rid, 0, number, "m", walk, (), {}, {}, VIEWER)
    walk_run = WalkRun(None, WorkerRequest(rid, 0, None), start, None, 0)
    return ReadyCall(walk_run, None, Thing(detail=Call(0, (), (), (), call_index)), 0.0)


def snapshot(*waiting, requests=(), running=()):
    return WorkerSnapshot({"requests": 1}, waiting, running, inf, requests)


def test_nothing_is_recorded_without_viewers():
    live_stats = LiveStats()
    assert not live_stats
    live_stats.on_batch([ready_call("r", 0)], 0.1)
    live_stats.on_transfer(Peer("w1", 0), 0.1)
    activity = live_stats.build_activity(1.0, VIEWER, 7, snapshot())
    assert (activity.correlation_id, activity.ops, activity.positions, activity.transfers, activity.counts) == (
        7,
        [],
        [],
        [],
        {"requests": 1},
    )
    assert live_stats


def test_batches_are_counted_by_call_and_every_request_has_a_position():
    live_stats = LiveStats()
    live_stats.build_activity(1.0, VIEWER, 0, snapshot())
    live_stats.on_batch([ready_call("r", 0), ready_call("s", 0), ready_call("t", 3, "think", 2)], 0.3)
    live_stats.on_batch([ready_call("r", 1)], 0.1)
    live_stats.on_transfer(Peer("w1", 0), 0.01)
    live_stats.on_transfer(Peer("w1", 0), 0.02)
    activity = live_stats.build_activity(
        2.0, VIEWER, 1, snapshot(ready_call("s", 1), ready_call("u", 0), running=[ready_call("t", 4, "think", 2)])
    )
    ops = {
        (op.walk, op.call_index): (op.batches, op.calls, op.max_batch_size, round(op.busy_s, 6), op.ready_calls)
        for op in activity.ops
    }
    assert ops == {
        ("speak", 0): (1, 2, 3, 0.2, 1),
        ("think", 3): (1, 1, 3, 0.1, 0),
        ("speak", 1): (1, 1, 1, 0.1, 1),
    }
    positions = {item.rid: (item.walk_index, item.call_index) for item in activity.positions}
    assert positions == {
        "r": (0, 1),
        "s": (0, 1),
        "t": (2, 4),
        "u": (0, 0),
    }  # the current call of a waiting or running request, otherwise its last one
    assert [(item.to, item.count) for item in activity.transfers] == [("w1", 2)]
    assert live_stats.build_activity(3.0, VIEWER, 2, snapshot()).ops == []


def test_each_viewer_gets_everything_and_expires_when_silent():
    live_stats = LiveStats()
    live_stats.build_activity(1.0, VIEWER, 0, snapshot())
    live_stats.build_activity(1.0, OTHER_VIEWER, 0, snapshot())
    live_stats.on_batch([ready_call("r", 0)], 0.1)
    assert len(live_stats.build_activity(2.0, VIEWER, 1, snapshot()).ops) == 1
    assert len(live_stats.build_activity(2.5, OTHER_VIEWER, 1, snapshot()).ops) == 1
    live_stats.expire(2.1 + VIEWER_TTL_S)
    live_stats.on_batch([ready_call("r", 0)], 0.1)
    assert live_stats.build_activity(5.0, VIEWER, 2, snapshot()).ops == []
    live_stats.expire(6.0 + VIEWER_TTL_S)
    assert not live_stats


def test_a_stream_is_as_full_as_the_fullest():
    plan = Thing(streams=(("~words", 32),))

    def make_request(rid, *items):
        run = ready_call(rid, 0).walk_run
        run.plan = plan
        ends = {number: Thing(source=(0, 0), items=[0] * count) for number, count in enumerate(items)}
        run.runs = {0: Thing(readers=ends)}
        run.request.walk_run = run
        return run.request

    activity = LiveStats().build_activity(
        1.0, VIEWER, 0, snapshot(requests=[make_request("r", 2, 5), make_request("s", 1)])
    )
    (item,) = activity.streams
    assert (item.model, item.walk, item.stream, item.items, item.capacity, item.requests) == (
        "m",
        "speak",
        "~words",
        5,
        32,
        2,
    )
