"""What a worker notes of its batches: one span for each op of a walk, whatever the number of its steps."""

import sys
import time

from mstar.engine.jobs import UNFINISHED, JobDone
from mstar.plan.tables import BatchKey, Plans
from mstar.wire.messages import Peer, StartWalk
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.stats.op_stats import OpStatsRecorder

DECODE, CHECK = ("m", 0), ("m", 1)
DONE = JobDone(())


def make_stats():
    return OpStatsRecorder(
        {"m": Plans({}, (BatchKey("lm", "decode"), BatchKey("lm", "check", (("deep", True),))), ("a",))}
    )


def walk_run(tally, rid, walk="speak", number=0, attempt=3):
    guest = WorkerRequest(rid, attempt, tally.spans(rid))
    return WalkRun(None, guest, StartWalk(rid, attempt, number, "m", walk, (), {}, {}, Peer("front", 0)), None, 0)


def record_batch(tally, now, key, waiters, seconds, result=DONE):
    tally.now = now
    tally.on_batch(key, waiters, [result] * len(waiters), seconds)


def close(*pairs):
    return all(abs(found - wanted) < 1e-9 for found, wanted in pairs)


def test_a_loop_is_one_span_with_its_steps():
    one = make_stats()
    it = walk_run(one, "r")
    for step in range(10):
        record_batch(one, 1.0 + step, DECODE, [ReadyCall(it, None, None, 0.5 + step)], 0.25)
    (span,) = one.snapshot(9.0, "r")
    assert (span.kind, span.name, span.walk, span.walk_index, span.attempt) == ("op", "lm.decode", "speak", 0, 3)
    assert (span.calls, span.max_batch_size) == (10, 1)
    assert close((span.start, 0.75), (span.end, 10.0), (span.busy_s, 2.5), (span.wait_s, 2.5))


def test_a_batch_is_shared_equally_and_counted_once():
    one = make_stats()
    tours = [walk_run(one, f"r{number}", "speak" if number else "think") for number in range(4)]
    record_batch(one, 2.0, DECODE, [ReadyCall(it, None, None, 1.5) for it in tours], 0.4)
    record_batch(one, 3.0, CHECK, [ReadyCall(tours[0], None, None, 3.0)], 0.0)
    decode, check = one.ops()
    assert (decode.model, decode.component, decode.op, decode.batches) == ("m", "lm", "decode", 1)
    assert {walk: count.calls for walk, count in decode.walks.items()} == {"think": 1, "speak": 3}
    assert close((decode.walks["think"].busy_s, 0.1), (decode.walks["speak"].busy_s, 0.3))
    assert close((decode.walks["think"].wait_s, 0.1), (decode.walks["speak"].wait_s, 0.3))
    assert (check.op, check.batches) == ("check", 1)
    span, checked = one.snapshot(9.0, "r0")
    assert (span.max_batch_size, checked.name) == (4, "lm.check[deep=True]")
    assert close((span.busy_s, 0.4))


def test_a_chunked_call_is_one_call_and_its_runs_are_not_waiting():
    one = make_stats()
    waiter = ReadyCall(walk_run(one, "r"), None, None, 1.0)
    record_batch(one, 2.0, DECODE, [waiter], 0.5, UNFINISHED)  # waited 0.5
    record_batch(one, 3.0, DECODE, [waiter], 0.75, UNFINISHED)  # and 0.25
    record_batch(one, 4.0, DECODE, [waiter], 1.0)  # and nothing
    (span,) = one.snapshot(9.0, "r")
    assert (span.calls, one.ops()[0].batches) == (1, 3)
    assert close((span.busy_s, 2.25), (span.wait_s, 0.75), (one.ops()[0].walks["speak"].wait_s, 0.75))


def test_what_is_sent_to_one_worker_is_one_span():
    one = make_stats()
    it = walk_run(one, "r")
    for now in (1.0, 2.0):
        one.now = now
        one.on_transfer(it, Peer("b", 0), now - 0.5)
    one.on_transfer(it, Peer("c", 0), 2.0)
    assert [(span.kind, span.name, span.calls) for span in one.snapshot(9.0, "r")] == [
        ("transfer", "to b", 2),
        ("transfer", "to c", 1),
    ]


def test_what_is_still_computed_for_a_request_that_is_over_keeps_nothing():
    one = make_stats()
    it = walk_run(one, "r")
    one.finish("r")
    record_batch(one, 1.0, DECODE, [ReadyCall(it, None, None, 0.5)], 0.1)
    assert [span.name for span in one.snapshot(9.0, "r")] == ["lm.decode"]
    for number in range(300):
        one.spans(f"x{number}")
        one.finish(f"x{number}")
    assert one.snapshot(9.0, "r") == []


def test_it_costs_little():
    one = make_stats()
    waiters = [ReadyCall(walk_run(one, f"r{number}"), None, None, 0.0) for number in range(16)]
    results = [DONE] * 16
    best, tracer = float("inf"), sys.gettrace()
    sys.settrace(None)  # coverage would be measured instead
    for _ in range(30):
        begun = time.perf_counter()
        for _ in range(50):
            one.on_batch(DECODE, waiters, results, 0.001)
        best = min(best, time.perf_counter() - begun)
    sys.settrace(tracer)
    assert best / 50 / 16 < 3e-6
