"""Links: whatever the channel loses, repeats or reorders, each payload arrives once and in order."""

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar.wire.link import ACK_DELAY_S, ACK_EVERY_FRAMES, MAX_RESEND_FRAMES, RESEND_TIMEOUT_S, WINDOW_FRAMES, Link


class Channel:
    """Two links, and the frames between them."""

    def __init__(self):
        self.links = Link(), Link()
        self.under_way = [], []  # towards each side
        self.arrived = [], []
        self.sent = [0, 0]
        self.now = 0.0

    def send(self, side):
        frame = self.links[side].send(self.now, self.sent[side])
        self.sent[side] += 1
        self.under_way[1 - side].extend([frame] if frame else [])

    def deliver(self, side, index=0, keep=False):
        frame = self.under_way[side][index] if keep else self.under_way[side].pop(index)
        self.arrived[side].extend(self.links[side].receive(self.now, *frame))

    def tick(self):
        for side, link in enumerate(self.links):
            if self.now >= link.due:
                frames = link.tick(self.now)
                assert frames, "a link that was due has to say something"
                self.under_way[1 - side].extend(frames)
            assert link.due > self.now

    def settle(self):
        """Let time pass without faults until there is nothing left to do. Returns how long it took."""
        start = self.now
        while any(self.under_way) or min(link.due for link in self.links) < inf:
            for side in (0, 1):
                while self.under_way[side]:
                    self.deliver(side)
            due = min(link.due for link in self.links)
            self.now = max(self.now, due) if due < inf else self.now
            assert self.now < start + 60, "it does not come to an end"
            self.tick()
        return self.now - start

    def check(self):
        for side in (0, 1):
            assert self.arrived[side] == list(range(self.sent[1 - side]))
            assert self.links[side].unacked == 0
            assert not self.links[side]._out_of_order


def misbehave(channel, chance, steps, loss, repeat, burst):
    """Random faults: what is under way is delivered in any order, lost or delivered twice."""
    for _ in range(steps):
        side = chance.randrange(2)
        match chance.randrange(4):
            case 0:
                for _ in range(chance.randint(1, burst)):
                    channel.send(side)
            case 1 if channel.under_way[side]:
                index = chance.randrange(len(channel.under_way[side]))
                if chance.random() < loss:
                    channel.under_way[side].pop(index)
                else:
                    channel.deliver(side, index, keep=chance.random() < repeat)
            case 2 if channel.under_way[side]:
                channel.deliver(side)
            case _:
                channel.now += chance.choice([0.001, 0.03, 0.3])
                channel.tick()
        for side in (0, 1):
            assert channel.arrived[side] == list(range(len(channel.arrived[side]))), "out of order, or not once"
            assert len(channel.links[side]._out_of_order) < WINDOW_FRAMES


RATES = st.sampled_from([0.0, 0.1, 0.5, 0.9])


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), loss=RATES, repeat=RATES, burst=st.sampled_from([1, 5, 400]))
def test_every_payload_arrives_once_and_in_order(seed, loss, repeat, burst):
    channel = Channel()
    misbehave(channel, random.Random(seed), 200, loss, repeat, burst)
    channel.settle()
    channel.check()


def test_the_second_frame_may_come_before_the_first():
    channel = Channel()
    channel.send(0)
    channel.send(0)
    channel.deliver(1, 1)
    assert channel.arrived[1] == []
    channel.deliver(1)
    assert channel.arrived[1] == [0, 1]


def test_without_faults_nothing_is_sent_twice_and_few_frames_only_confirm():
    channel = Channel()
    for _ in range(1000):
        channel.send(0)
        channel.tick()
        while channel.under_way[1]:
            channel.deliver(1)
        channel.tick()
        only_confirm = [frame for frame in channel.under_way[0] if not frame[0]]
        assert len(only_confirm) <= 1
        while channel.under_way[0]:
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
            assert len(channel.under_way[1 - side]) == 1
            channel.deliver(1 - side)
        channel.now += ACK_DELAY_S / 2
        channel.tick()
    assert channel.links[0].unacked == 0
    assert channel.links[1].unacked == 1


def test_silence_is_met_with_few_frames_and_longer_waits():
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
    link.receive(20.0, 0, MAX_RESEND_FRAMES - 1, None)  # not yet all that was sent again: no more for now
    assert link.due == 20.0
    assert [number for number, _, _ in link.tick(20.0)] == list(
        range(WINDOW_FRAMES + 1, WINDOW_FRAMES + MAX_RESEND_FRAMES)
    )
    assert link.due == 20.0 + RESEND_TIMEOUT_S
    link.tick(link.due)
    assert link.due == pytest.approx(20.0 + 3 * RESEND_TIMEOUT_S)  # the waits are short again


def test_a_lost_burst_is_made_good():
    channel = Channel()
    for _ in range(10 * WINDOW_FRAMES):
        channel.send(0)
    channel.under_way[1].clear()
    assert channel.settle() < RESEND_TIMEOUT_S + 2 * ACK_DELAY_S
    channel.check()
    assert channel.links[0].resent == WINDOW_FRAMES


def test_a_confirmation_of_what_was_never_sent_means_nothing():
    link = Link()
    link.send(0.0, "a")
    link.receive(0.0, 0, 2, None)
    assert link.unacked == 1
    link.receive(0.0, 0, 1, None)
    link.receive(0.0, 0, 0, None)
    assert link.unacked == 0
    assert link.due == inf


def test_what_waits_is_sent_before_what_comes_later():
    channel = Channel()
    for _ in range(WINDOW_FRAMES + 10):
        channel.send(0)
    for _ in range(WINDOW_FRAMES):
        channel.deliver(1)
    channel.links[0].receive(0.0, 0, WINDOW_FRAMES, None)  # now there is room, but nobody has ticked yet
    channel.send(0)
    assert channel.under_way[1] == []
    channel.settle()
    channel.check()


def test_a_lost_confirmation_is_repeated_when_the_frame_is():
    channel = Channel()
    channel.send(0)
    channel.deliver(1)
    channel.now = ACK_DELAY_S
    channel.tick()
    channel.under_way[0].clear()
    assert channel.settle() < 2 * RESEND_TIMEOUT_S
    channel.check()


def test_what_is_too_early_is_not_kept():
    link = Link()
    for number in (WINDOW_FRAMES, WINDOW_FRAMES + 1):
        link.receive(0.0, number, 0, number)
    assert list(link._out_of_order) == [WINDOW_FRAMES]
