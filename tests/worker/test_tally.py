"""What a worker notes of its batches: one span for each op of a walk, whatever the number of its steps."""

import sys
import time

from mstar.engine.jobs import UNFINISHED, Done
from mstar.plan.tables import BatchKey, Plans
from mstar.wire.messages import Peer, Start
from mstar.worker.batches import Waiter
from mstar.worker.tally import Tally
from mstar.worker.tours import Guest, Tour

DECODE, CHECK = ("m", 0), ("m", 1)
DONE = Done(())


def tally():
    return Tally({"m": Plans({}, (BatchKey("lm", "decode"), BatchKey("lm", "check", (("deep", True),))), ("a",))})


def tour(tally, rid, walk="speak", number=0, attempt=3):
    guest = Guest(rid, attempt, tally.spans(rid))
    return Tour(None, guest, Start(rid, attempt, number, "m", walk, (), {}, {}, Peer("front", 0)), None, 0)


def ran(tally, now, key, waiters, seconds, result=DONE):
    tally.now = now
    tally.ran(key, waiters, [result] * len(waiters), seconds)


def close(*pairs):
    return all(abs(found - wanted) < 1e-9 for found, wanted in pairs)


def test_a_loop_is_one_span_with_its_steps():
    one = tally()
    it = tour(one, "r")
    for step in range(10):
        ran(one, 1.0 + step, DECODE, [Waiter(it, None, None, 0.5 + step)], 0.25)
    (span,) = one.told(9.0, "r")
    assert (span.what, span.name, span.walk, span.number, span.attempt) == ("op", "lm.decode", "speak", 0, 3)
    assert (span.calls, span.batch) == (10, 1)
    assert close((span.start, 0.75), (span.end, 10.0), (span.busy, 2.5), (span.waited, 2.5))


def test_a_batch_is_shared_equally_and_counted_once():
    one = tally()
    tours = [tour(one, f"r{number}", "speak" if number else "think") for number in range(4)]
    ran(one, 2.0, DECODE, [Waiter(it, None, None, 1.5) for it in tours], 0.4)
    ran(one, 3.0, CHECK, [Waiter(tours[0], None, None, 3.0)], 0.0)
    decode, check = one.ops()
    assert (decode.model, decode.component, decode.op, decode.batches) == ("m", "lm", "decode", 1)
    assert {walk: count.calls for walk, count in decode.walks.items()} == {"think": 1, "speak": 3}
    assert close((decode.walks["think"].seconds, 0.1), (decode.walks["speak"].seconds, 0.3))
    assert close((decode.walks["think"].waited, 0.1), (decode.walks["speak"].waited, 0.3))
    assert (check.op, check.batches) == ("check", 1)
    span, checked = one.told(9.0, "r0")
    assert (span.batch, checked.name) == (4, "lm.check[deep=True]")
    assert close((span.busy, 0.4))


def test_a_call_in_pieces_is_one_call_and_what_it_ran_is_no_waiting():
    one = tally()
    waiter = Waiter(tour(one, "r"), None, None, 1.0)
    ran(one, 2.0, DECODE, [waiter], 0.5, UNFINISHED)  # waited 0.5
    ran(one, 3.0, DECODE, [waiter], 0.75, UNFINISHED)  # and 0.25
    ran(one, 4.0, DECODE, [waiter], 1.0)  # and nothing
    (span,) = one.told(9.0, "r")
    assert (span.calls, one.ops()[0].batches) == (1, 3)
    assert close((span.busy, 2.25), (span.waited, 0.75), (one.ops()[0].walks["speak"].waited, 0.75))


def test_what_is_sent_to_one_worker_is_one_span():
    one = tally()
    it = tour(one, "r")
    for now in (1.0, 2.0):
        one.now = now
        one.passed(it, Peer("b", 0), now - 0.5)
    one.passed(it, Peer("c", 0), 2.0)
    assert [(span.what, span.name, span.calls) for span in one.told(9.0, "r")] == [
        ("transfer", "to b", 2),
        ("transfer", "to c", 1),
    ]


def test_what_is_still_computed_for_a_request_that_is_over_keeps_nothing():
    one = tally()
    it = tour(one, "r")
    one.end("r")
    ran(one, 1.0, DECODE, [Waiter(it, None, None, 0.5)], 0.1)
    assert [span.name for span in one.told(9.0, "r")] == ["lm.decode"]
    for number in range(300):
        one.spans(f"x{number}")
        one.end(f"x{number}")
    assert one.told(9.0, "r") == []


def test_it_costs_little():
    one = tally()
    waiters = [Waiter(tour(one, f"r{number}"), None, None, 0.0) for number in range(16)]
    results = [DONE] * 16
    best, tracer = float("inf"), sys.gettrace()
    sys.settrace(None)  # coverage would be measured instead
    for _ in range(30):
        begun = time.perf_counter()
        for _ in range(50):
            one.ran(DECODE, waiters, results, 0.001)
        best = min(best, time.perf_counter() - begun)
    sys.settrace(tracer)
    assert best / 50 / 16 < 3e-6
