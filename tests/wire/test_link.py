"""Links: exactly-once, in-order delivery over a channel that loses, duplicates and reorders frames."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar.wire.link import (
    ACK_DELAY_S,
    ACK_EVERY_FRAMES,
    MAX_RESEND_FRAMES,
    REFUSED_RETRY_S,
    RESEND_TIMEOUT_S,
    WINDOW_FRAMES,
    Link,
)


class Channel:
    """Two links and the frames in flight between them. `room` is what its transport takes before it refuses frames."""

    def __init__(self):
        self.links = Link(), Link()
        self.room = inf
        self.in_flight = [], []  # towards each side
        self.arrived = [], []
        self.sent = [0, 0]
        self.now = 0.0

    def send(self, side):
        frame = self.links[side].send(self.now, self.sent[side])
        self.sent[side] += 1
        self.transmit(side, [frame] if frame else [])

    def transmit(self, side, frames):
        for frame in frames:
            if len(self.in_flight[1 - side]) >= self.room:
                self.links[side].on_refused(self.now, frame[0])
                break
            self.in_flight[1 - side].append(frame)

    def deliver(self, side, index=0, keep=False):
        frame = self.in_flight[side][index] if keep else self.in_flight[side].pop(index)
        self.arrived[side].extend(self.links[side].receive(self.now, *frame))

    def tick(self):
        for side, link in enumerate(self.links):
            if self.now >= link.due:
                frames = link.tick(self.now)
                assert frames, "a due link must send a frame"
                self.transmit(side, frames)
            assert link.due > self.now

    def settle(self):
        """Run without faults until nothing is left to send. Returns the simulated seconds."""
        start, self.room = self.now, inf
        while any(self.in_flight) or min(link.due for link in self.links) < inf:
            for side in (0, 1):
                while self.in_flight[side]:
                    self.deliver(side)
            due = min(link.due for link in self.links)
            self.now = max(self.now, due) if due < inf else self.now
            assert self.now < start + 60, "does not terminate"
            self.tick()
        return self.now - start

    def check(self):
        for side in (0, 1):
            assert self.arrived[side] == list(range(self.sent[1 - side]))
            assert self.links[side].unacked == 0
            assert not self.links[side]._out_of_order


def inject_faults(channel, rng, steps, loss, repeat, burst):
    """Inject random faults: frames in flight are delivered in any order, lost or duplicated."""
    for _ in range(steps):
        side = rng.randrange(2)
        match rng.randrange(4):
            case 0:
                for _ in range(rng.randint(1, burst)):
                    channel.send(side)
            case 1 if channel.in_flight[side]:
                index = rng.randrange(len(channel.in_flight[side]))
                if rng.random() < loss:
                    channel.in_flight[side].pop(index)
                else:
                    channel.deliver(side, index, keep=rng.random() < repeat)
            case 2 if channel.in_flight[side]:
                channel.deliver(side)
            case _:
                channel.now += rng.choice([0.001, 0.03, 0.3])
                channel.tick()
        for side in (0, 1):
            assert channel.arrived[side] == list(range(len(channel.arrived[side]))), "out of order or duplicated"
            assert len(channel.links[side]._out_of_order) < WINDOW_FRAMES


RATES = st.sampled_from([0.0, 0.1, 0.5, 0.9])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=RATES,
    repeat=RATES,
    burst=st.sampled_from([1, 5, 400]),
    room=st.sampled_from([1, 7, 300, inf]),
)
def test_every_payload_arrives_once_and_in_order(seed, loss, repeat, burst, room):
    channel = Channel()
    channel.room = room
    inject_faults(channel, random.Random(seed), 200, loss, repeat, burst)
    channel.settle()
    channel.check()


def test_a_reordered_frame_waits_for_its_predecessor():
    channel = Channel()
    channel.send(0)
    channel.send(0)
    channel.deliver(1, 1)
    assert channel.arrived[1] == []
    channel.deliver(1)
    assert channel.arrived[1] == [0, 1]


def test_without_faults_nothing_is_resent_and_acks_are_few():
    channel = Channel()
    for _ in range(1000):
        channel.send(0)
        channel.tick()
        while channel.in_flight[1]:
            channel.deliver(1)
        channel.tick()
        pure_acks = [frame for frame in channel.in_flight[0] if not frame[0]]
        assert len(pure_acks) <= 1
        while channel.in_flight[0]:
            channel.deliver(0)
        assert channel.links[0].unacked < ACK_EVERY_FRAMES
    assert channel.settle() == ACK_DELAY_S
    channel.check()
    assert channel.links[0].resent == 0


def test_a_reply_carries_the_acknowledgement():
    channel = Channel()
    for _ in range(100):
        for side in (0, 1):
            channel.send(side)
            assert len(channel.in_flight[1 - side]) == 1
            channel.deliver(1 - side)
        channel.now += ACK_DELAY_S / 2
        channel.tick()
    assert channel.links[0].unacked == 0
    assert channel.links[1].unacked == 1


def test_resends_are_few_and_back_off_exponentially():
    link = Link()
    sent = [frame for n in range(WINDOW_FRAMES + 50) if (frame := link.send(0.0, n))]
    assert len(sent) == WINDOW_FRAMES
    times = []
    while link.due < 10:
        times.append(link.due)
        assert [number for number, _, _ in link.tick(link.due)] == list(range(1, MAX_RESEND_FRAMES + 1))
    assert times[:4] == pytest.approx([RESEND_TIMEOUT_S, 0.6, 1.4, 2.4])
    assert len(times) == 11
    assert link.unacked == WINDOW_FRAMES + 50
    link.receive(20.0, 0, MAX_RESEND_FRAMES - 1, None)  # only part of the resent frames: no further resend yet
    assert link.due == 20.0
    assert [number for number, _, _ in link.tick(20.0)] == list(
        range(WINDOW_FRAMES + 1, WINDOW_FRAMES + MAX_RESEND_FRAMES)
    )
    assert link.due == 20.0 + RESEND_TIMEOUT_S
    link.tick(link.due)
    assert link.due == pytest.approx(20.0 + 3 * RESEND_TIMEOUT_S)  # the backoff is reset


def test_a_lost_burst_is_resent():
    channel = Channel()
    for _ in range(10 * WINDOW_FRAMES):
        channel.send(0)
    channel.in_flight[1].clear()
    assert channel.settle() < RESEND_TIMEOUT_S + 2 * ACK_DELAY_S
    channel.check()
    assert channel.links[0].resent == WINDOW_FRAMES


def test_refused_frames_are_sent_once_there_is_room():
    channel = Channel()
    channel.room = 3
    for _ in range(10):
        channel.send(0)
    assert [number for number, _, _ in channel.in_flight[1]] == [1, 2, 3]
    assert channel.links[0].due == REFUSED_RETRY_S
    channel.deliver(1)
    channel.links[0].on_writable(0.001)
    channel.now = 0.001
    channel.tick()
    assert [number for number, _, _ in channel.in_flight[1]] == [2, 3, 4]
    while channel.in_flight[1]:
        channel.deliver(1)
        channel.links[0].on_writable(channel.now)
        channel.tick()
    channel.settle()
    channel.check()
    assert channel.links[0].resent == 0


def test_an_ack_of_an_unsent_frame_is_ignored():
    link = Link()
    link.send(0.0, "a")
    link.receive(0.0, 0, 2, None)
    assert link.unacked == 1
    link.receive(0.0, 0, 1, None)
    link.receive(0.0, 0, 0, None)
    assert link.unacked == 0
    assert link.due == inf


def test_queued_payloads_are_sent_before_new_ones():
    channel = Channel()
    for _ in range(WINDOW_FRAMES + 10):
        channel.send(0)
    for _ in range(WINDOW_FRAMES):
        channel.deliver(1)
    channel.links[0].receive(0.0, 0, WINDOW_FRAMES, None)  # the window has room, before the next tick
    channel.send(0)
    assert channel.in_flight[1] == []
    channel.settle()
    channel.check()


def test_a_lost_ack_is_repeated_for_the_resent_frame():
    channel = Channel()
    channel.send(0)
    channel.deliver(1)
    channel.now = ACK_DELAY_S
    channel.tick()
    channel.in_flight[0].clear()
    assert channel.settle() < 2 * RESEND_TIMEOUT_S
    channel.check()


def test_frames_beyond_the_window_are_dropped():
    link = Link()
    for number in (WINDOW_FRAMES, WINDOW_FRAMES + 1):
        link.receive(0.0, number, 0, number)
    assert list(link._out_of_order) == [WINDOW_FRAMES]


def test_an_unreliable_payload_is_delivered_without_a_number_and_carries_the_ack():
    left, right = Link(), Link()
    right.receive(0.0, *left.send(0.0, "a"))
    frame = right.send_unreliable("beat")
    assert frame == (0, 1, "beat")
    assert right.due == inf
    assert left.receive(0.0, *frame) == ("beat",)
    assert (left.unacked, right.unacked, left.due) == (0, 0, inf)


def test_an_unreliable_payload_does_not_delay_queued_ones():
    link = Link()
    for n in range(WINDOW_FRAMES + 1):
        link.send(0.0, n)
    link.receive(0.0, 0, WINDOW_FRAMES, None)
    link.send_unreliable("beat")
    assert link.due == 0.0
    assert [number for number, _, _ in link.tick(0.0)] == [WINDOW_FRAMES + 1]
