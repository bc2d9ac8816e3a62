"""Decode threads: a channel that waits for another host keeps its order and does not delay others."""

import threading
import time

import pytest

from mstar.errors import WouldBlock
from mstar.wire.frame import MessageCodec, UnreadableValue, pack_payloads
from mstar.wire.messages import Cancel, Peer, Submit, Value
from mstar.wire.transport import decode_thread
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from tests.wire.actors import KEY, MsgpackCodec, RecordingActor, run_loop, wait_until

A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


class SlowCodec(MsgpackCodec):
    """Codec for which some strings are on another host: they arrive once the gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.requested = []

    def unpack(self, data, sender, *, may_wait=False):
        value = super().unpack(data, sender)
        if not str(value).startswith("far"):
            return value
        if not may_wait:
            raise WouldBlock
        self.requested.append(value)
        self.gate.wait(20)
        if value == "far and lost":
            raise WouldBlock  # must not happen with may_wait
        return value


class ThreeLoops:
    """Three actor loops: b receives messages from a and c."""

    def __init__(self, directory):
        self.codec = SlowCodec()
        self.receiver = RecordingActor("b")
        self.node = self._new_loop(directory, self.receiver, self.codec)
        self.a = self._new_loop(directory, RecordingActor("a"), MsgpackCodec())
        self.c = self._new_loop(directory, RecordingActor("c"), MsgpackCodec())

    def _new_loop(self, directory, receiver, codec):
        node = ActorLoop(AddressBook(directory), KEY, codec)
        node.add(receiver)
        return node

    def send(self, *values, by=None):
        """Send each value in its own frame."""
        node, sender = (by, C) if by else (self.a, A)
        for value in values:
            sent = node.counters["sent"]
            node.call_soon(lambda value=value: node.send(sender, B, Submit(str(value), "m", Value(value))))
            wait_until(lambda sent=sent: node.counters["sent"] > sent)

    def received(self, sender=A):
        return [message.request.content for source, message in self.receiver.received if source == sender]

    def threads(self):
        return [thread for thread in threading.enumerate() if thread.name.startswith("decode from")]


@pytest.fixture
def loops(tmp_path):
    loops = ThreeLoops(tmp_path)
    with run_loop(loops.node), run_loop(loops.a), run_loop(loops.c):
        yield loops
        loops.codec.gate.set()
    assert loops.threads() == []


def test_a_channel_keeps_its_order_and_blocks_no_other(loops):
    loops.send(1, "far 2", 3, "far 4", 5)
    loops.receiver.wait(lambda: loops.received() == [1])
    loops.send("6", "7", by=loops.c)
    loops.receiver.wait(lambda: loops.received(C) == ["6", "7"])
    assert loops.received() == [1]
    assert loops.node.stats()["decoding"] == 4
    loops.codec.gate.set()
    loops.receiver.wait(lambda: loops.received() == [1, "far 2", 3, "far 4", 5])
    wait_until(lambda: loops.node.stats()["decoding"] == 0)
    loops.send(8)
    loops.receiver.wait(lambda: loops.received()[-1] == 8)
    assert len(loops.threads()) == 1


def test_two_channels_wait_at_the_same_time(loops):
    loops.send("far 1")
    loops.send("far 2", by=loops.c)
    wait_until(lambda: set(loops.codec.requested) == {"far 1", "far 2"})
    loops.codec.gate.set()
    loops.receiver.wait(lambda: len(loops.receiver.received) == 2)


def test_messages_of_a_dead_incarnation_are_dropped_and_its_thread_ends(loops):
    loops.send("far 1", "far 2")
    wait_until(lambda: loops.codec.requested == ["far 1"])
    loops.node.call_soon(lambda: loops.node.forget(A))
    wait_until(lambda: loops.codec.forgotten == [A])
    assert loops.node.stats()["decoding"] == 0
    loops.codec.gate.set()
    wait_until(lambda: not loops.threads())
    loops.send("3", by=loops.c)
    loops.receiver.wait(lambda: loops.receiver.received)
    assert (loops.received(), loops.received(C), loops.codec.requested) == ([], ["3"], ["far 1"])


def test_a_failed_transfer_costs_one_value_and_an_invalid_payload_one_payload(loops):
    loops.codec.gate.set()
    loops.send("far and lost")
    loops.receiver.wait(lambda: loops.receiver.received)
    (lost,) = loops.received()
    assert isinstance(lost, UnreadableValue)
    channel = next(iter(loops.node._channels._channels.values()))
    loops.node.call_soon(lambda: channel.decode_thread.put(b"nonsense"))
    wait_until(lambda: loops.node.counters["undecoded"] == 1)
    loops.send("next")
    loops.receiver.wait(lambda: loops.received()[-1] == "next")
    assert loops.node.stats()["decoding"] == 0


def test_stopping_an_actor_loop_does_not_wait_for_transfers(loops):
    loops.send("far 1")
    wait_until(lambda: loops.codec.requested)
    start = time.monotonic()
    loops.node.stop()
    wait_until(lambda: loops.codec.is_closed)
    assert time.monotonic() - start < decode_thread.JOIN_TIMEOUT_S + 1.0
    loops.codec.gate.set()
    wait_until(lambda: not loops.threads())


def test_a_codec_raises_would_block_unless_it_may_wait():
    codec = SlowCodec()
    codec.gate.set()
    sent = MessageCodec(codec)
    payload = pack_payloads([sent.encode(message, B) for message in (Cancel("x"), Submit("r", "m", Value("far")))])[0]
    with pytest.raises(WouldBlock):
        MessageCodec(codec).decode(payload, A)
    cancel, submit = MessageCodec(codec, may_wait=True).decode(payload, A)
    assert (cancel.rid, submit.request.content) == ("x", "far")
