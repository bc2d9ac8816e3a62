"""Deadlines of a walk run: from its conductor, from its own emissions, and from other workers."""

import pytest

from mstar.wire import messages as m
from tests.worker.worker_harness import AUDIO_RATE, CONDUCTOR, W0, W1, WorkerHarness


def walk_run(worker):
    return worker.core._requests.get("r").walk_run


class PlayedStream:
    """A walk whose codes are made at one worker and played at another. Both have the same clock."""

    def __init__(self):
        self.maker, self.player = WorkerHarness(W0), WorkerHarness(W1)
        self.maker.start("played", first_due_in_s=1.0)
        self.player.start("played", inputs={}, first_due_in_s=1.0)

    def play(self, at):
        """Make a code and play it at a time; return what the player tells the maker about the client's buffer."""
        for worker in (self.maker, self.player):
            worker.now = at
            worker.receive(m.Heartbeat())  # keeps the lease of the conductor
        self.maker.finish_batch(5)
        self._transfer(self.maker, self.player)
        self.player.finish_batch(7)
        return self._transfer(self.player, self.maker)[0].due_in_s

    def _transfer(self, sender, receiver):
        messages = [message for _, message in sender.take_sent(m.DataBatch)]
        receiver.receive(*messages, sender=sender.core.peer)
        return messages


def test_a_worker_tells_another_one_when_the_client_runs_out_of_audio():
    stream = PlayedStream()
    assert stream.play(at=0.5) == {}, "the client has nothing to play yet"
    assert stream.play(at=0.6) == {"Audio": pytest.approx(0.15)}, "0.25 s of audio since 0.5 s"
    assert stream.play(at=2.0) == {"Audio": pytest.approx(-1.0)}, "the client ran out of audio at 1.0 s"


def test_both_workers_have_the_same_deadline():
    stream = PlayedStream()
    stream.play(at=0.5)
    expected = walk_run(stream.player).next_due("Audio")
    stream.play(at=0.6)
    assert expected == (pytest.approx(0.5 + 1 / AUDIO_RATE), True)
    assert walk_run(stream.maker).next_due("Audio") == (pytest.approx(expected[0]), True)


def test_a_call_at_another_worker_is_urgent_when_the_client_runs_out():
    stream = PlayedStream()
    stream.play(at=0.5)
    stream.play(at=0.6)
    (call,) = stream.maker.core._batches.calls()
    slacks = []
    for at in (0.6, 0.7):
        call.update_slack(at, stream.maker.core.scheduler.cost_model, 0.0)
        slacks.append(call.slack)
    assert 0 < slacks[0] < 0.15
    assert slacks[1] == pytest.approx(slacks[0] - 0.1), "slack falls with time"


def test_deadlines_of_the_conductor_are_relative_to_the_arrival_of_the_walk():
    worker = WorkerHarness()
    worker.now = 10.0
    worker.start("played", first_due_in_s=0.4, due_in_s={"Text": -0.2})
    run = walk_run(worker)
    assert run.next_due("Audio") == (pytest.approx(10.4), False)
    assert run.next_due("Text") == (pytest.approx(9.8), True)


def test_the_conductor_gets_the_remaining_audio_of_a_finished_partition():
    stream = PlayedStream()
    for at in (0.5, 0.6, 0.7):
        stream.play(at)
    ((to, done),) = stream.player.take_sent(m.SeatDone)
    assert to == CONDUCTOR
    assert done.due_in_s == {"Audio": pytest.approx(0.5 + 3 / AUDIO_RATE - 0.7)}


def test_an_emission_that_the_client_has_consumed_does_not_move_its_deadline():
    """It is replayed after the loss of a worker."""
    worker = WorkerHarness().start(first_due_in_s=1.0).receive(m.Credit("r", 0, "Latents", 1))
    run = walk_run(worker)
    assert run.record_playback(0.5, "Latents", 0.25) is None
    assert run.playback_clocks == {}
