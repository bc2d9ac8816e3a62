"""Test actors, a msgpack codec, and an echo process.

Run as a script it is the echo process; with an IP address it prints its own address first.
"""

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mstar.wire.messages import Cancel, Peer
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook

KEY = bytes(range(32))


class MsgpackCodec:
    """Codec for values that msgpack supports, inline in the frame."""

    def __init__(self):
        self.forgotten = []
        self.is_closed = False

    def pack(self, value, to):
        return msgspec.msgpack.encode(value)

    def unpack(self, data, sender, *, may_wait=False):
        return msgspec.msgpack.decode(data)

    def forget(self, peer):
        self.forgotten.append(peer)

    def close(self):
        self.is_closed = True


class RecordingActor:
    """Actor that records messages and lets a test wait for them."""

    def __init__(self, name, incarnation=0):
        self.peer = Peer(name, incarnation)
        self.received = []
        self.ticks = []
        self.changed = threading.Condition()

    def receive(self, now, sender, message):
        with self.changed:
            self.received.append((sender, message))
            self.changed.notify_all()

    def tick(self, now):
        with self.changed:
            self.ticks.append(now)
            self.changed.notify_all()

    def wait(self, condition, timeout_s=20):
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), f"{self.peer} received {len(self.received)} messages"

    @property
    def received_rids(self):
        return [message.rid for _, message in self.received]


class EchoActor(RecordingActor):
    """Actor that echoes every Cancel; Cancel("stop") ends its process."""

    def __init__(self, actor_loop, name, incarnation):
        super().__init__(name, incarnation)
        self.actor_loop = actor_loop

    def receive(self, now, sender, message):
        if message.rid == "stop":
            self.actor_loop.stop()
        self.actor_loop.send(self.peer, sender, Cancel(f"{self.peer}:{message.rid}"))


@contextmanager
def run_loop(actor_loop):
    """Run an actor loop in a thread."""
    thread = threading.Thread(target=actor_loop.run)
    thread.start()
    try:
        yield actor_loop
    finally:
        actor_loop.stop()
        thread.join(10)
        assert not thread.is_alive()


def wait_until(condition, timeout_s=10):
    """Poll a condition until it is true, or fail after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {timeout_s} s"
        time.sleep(0.002)


def send_cancels(actor_loop, sender, to, *rids):
    """Send Cancel messages from an actor of a loop."""
    actor_loop.call_soon(lambda: [actor_loop.send(sender, to, Cancel(rid)) for rid in rids])


def main(directory, name, incarnation, ip=""):
    address_book = AddressBook(Path(directory), ip)
    actor_loop = ActorLoop(address_book, KEY, MsgpackCodec())
    actor_loop.add(EchoActor(actor_loop, name, int(incarnation)))
    if ip:
        sys.stdout.write(f"{address_book.own_address}\n")
        sys.stdout.flush()
    actor_loop.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
