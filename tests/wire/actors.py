"""A codec for plain values, actors and a small second process for the tests of the wire. Run it, and it echoes.

With an IP address it says first where it is.
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
    """Values that msgpack knows, in the frame itself."""

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
    """An actor that keeps what it hears, and lets a test wait for it."""

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
            assert self.changed.wait_for(condition, timeout_s), f"{self.peer} heard {len(self.received)} messages"

    @property
    def received_rids(self):
        return [message.rid for _, message in self.received]


class EchoActor(RecordingActor):
    """An actor that answers every Cancel with the same; Cancel("stop") ends its process."""

    def __init__(self, node, name, incarnation):
        super().__init__(name, incarnation)
        self.node = node

    def receive(self, now, sender, message):
        if message.rid == "stop":
            self.node.stop()
        self.node.send(self.peer, sender, Cancel(f"{self.peer}:{message.rid}"))


@contextmanager
def run_loop(node):
    """A node whose loop runs in a thread."""
    thread = threading.Thread(target=node.run)
    thread.start()
    try:
        yield node
    finally:
        node.stop()
        thread.join(10)
        assert not thread.is_alive()


def wait_until(condition, timeout_s=10):
    """Wait until something holds, but not for ever."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.002)


def send_cancels(node, sender, to, *rids):
    """Let an actor of a node say these to another one."""
    node.call_soon(lambda: [node.send(sender, to, Cancel(rid)) for rid in rids])


def main(directory, name, incarnation, ip=""):
    whereabouts = AddressBook(Path(directory), ip)
    node = ActorLoop(whereabouts, KEY, MsgpackCodec())
    node.add(EchoActor(node, name, int(incarnation)))
    if ip:
        sys.stdout.write(f"{whereabouts.own_address}\n")
        sys.stdout.flush()
    node.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
