"""What a worker notes for those who look on: everything since they last asked, and nothing while nobody does."""

from types import SimpleNamespace as Thing

from mstar.plan.tables import Call
from mstar.wire.messages import Peer, Start
from mstar.worker.batches import Limits, Waiter, Waiting
from mstar.worker.tours import Guest, Tour
from mstar.worker.watch import LASTS, Watch

ANN, BOB = Peer("front", 0), Peer("other", 0)


def waiter(rid, at, walk="speak", number=0):
    start = Start(rid, 0, number, "m", walk, (), {}, {}, ANN)
    tour = Tour(None, Guest(rid, 0, None), start, None, 0)
    return Waiter(tour, None, Thing(detail=Call(0, (), (), (), at)), 0.0)


def core(*waiters, guests=(), running=()):
    waiting = Waiting(Limits())
    for one in waiters:
        waiting.put_back(("m", 0), one)
    there = {guest.rid: guest for guest in guests}
    return Thing(waiting=waiting, guests=there, stock=lambda: {"requests": 1}, running=lambda: iter(running))


def test_nothing_is_noted_while_nobody_looks_on():
    watch = Watch()
    assert not watch
    watch.ran([waiter("r", 0)], 0.1)
    watch.passed(Peer("w1", 0), 0.1)
    news = watch.news(1.0, ANN, 7, core())
    assert (news.ticket, news.ops, news.places, news.passed, news.counts) == (7, [], [], [], {"requests": 1})
    assert watch


def test_batches_are_counted_by_call_and_everybody_is_somewhere():
    watch = Watch()
    watch.news(1.0, ANN, 0, core())
    watch.ran([waiter("r", 0), waiter("s", 0), waiter("t", 3, "think", 2)], 0.3)
    watch.ran([waiter("r", 1)], 0.1)
    watch.passed(Peer("w1", 0), 0.01)
    watch.passed(Peer("w1", 0), 0.02)
    news = watch.news(2.0, ANN, 1, core(waiter("s", 1), waiter("u", 0), running=[waiter("t", 4, "think", 2)]))
    told = {(op.walk, op.at): (op.batches, op.calls, op.largest, round(op.busy, 6), op.waiting) for op in news.ops}
    assert told == {
        ("speak", 0): (1, 2, 3, 0.2, 1),
        ("think", 3): (1, 1, 3, 0.1, 0),
        ("speak", 1): (1, 1, 1, 0.1, 1),
    }
    where = {one.rid: (one.number, one.at) for one in news.places}
    assert where == {
        "r": (0, 1),
        "s": (0, 1),
        "t": (2, 4),
        "u": (0, 0),
    }  # who waits, or runs, is there; who not, where it was
    assert [(one.to, one.count) for one in news.passed] == [("w1", 2)]
    assert watch.news(3.0, ANN, 2, core()).ops == []


def test_each_who_looks_on_is_told_all_and_forgotten_when_silent():
    watch = Watch()
    watch.news(1.0, ANN, 0, core())
    watch.news(1.0, BOB, 0, core())
    watch.ran([waiter("r", 0)], 0.1)
    assert len(watch.news(2.0, ANN, 1, core()).ops) == 1
    assert len(watch.news(2.5, BOB, 1, core()).ops) == 1
    watch.expire(2.1 + LASTS)
    watch.ran([waiter("r", 0)], 0.1)
    assert watch.news(5.0, ANN, 2, core()).ops == []
    watch.expire(6.0 + LASTS)
    assert not watch


def test_a_stream_is_as_full_as_the_fullest():
    plan = Thing(streams=(("~words", 32),))

    def guest(rid, *items):
        it = waiter(rid, 0).tour
        it.plan = plan
        ends = {number: Thing(source=(0, 0), items=[0] * count) for number, count in enumerate(items)}
        it.runs = {0: Thing(readers=ends)}
        it.guest.tour = it
        return it.guest

    news = Watch().news(1.0, ANN, 0, core(guests=[guest("r", 2, 5), guest("s", 1)]))
    (one,) = news.streams
    assert (one.model, one.walk, one.stream, one.items, one.bound, one.tours) == ("m", "speak", "~words", 5, 32, 2)
