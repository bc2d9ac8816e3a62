"""A codec for plain values, actors and a small second process for the tests of the wire. Run it, and it echoes."""

import sys
import threading
from pathlib import Path

import msgspec

from mstar.wire.messages import Cancel, Peer
from mstar.wire.node import Node

KEY = bytes(range(32))


class Plain:
    """Values that msgpack knows, in the frame itself."""

    def __init__(self):
        self.forgotten = []
        self.is_closed = False

    def pack(self, value, to):
        return msgspec.msgpack.encode(value)

    def unpack(self, data, sender):
        return msgspec.msgpack.decode(data)

    def forget(self, peer):
        self.forgotten.append(peer)

    def close(self):
        self.is_closed = True


class Ear:
    """An actor that keeps what it hears, and lets a test wait for it."""

    def __init__(self, name, incarnation=0):
        self.peer = Peer(name, incarnation)
        self.heard = []
        self.ticks = []
        self.changed = threading.Condition()

    def receive(self, now, sender, message):
        with self.changed:
            self.heard.append((sender, message))
            self.changed.notify_all()

    def tick(self, now):
        with self.changed:
            self.ticks.append(now)
            self.changed.notify_all()

    def wait(self, condition, timeout_s=20):
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), f"{self.peer} heard {len(self.heard)} messages"

    @property
    def said(self):
        return [message.rid for _, message in self.heard]


class Echo(Ear):
    """An actor that answers every Cancel with the same; Cancel("stop") ends its process."""

    def __init__(self, node, name, incarnation):
        super().__init__(name, incarnation)
        self.node = node

    def receive(self, now, sender, message):
        if message.rid == "stop":
            self.node.stop()
        self.node.send(self.peer, sender, Cancel(f"{self.peer}:{message.rid}"))


def main(directory, name, incarnation):
    node = Node(Path(directory), KEY, Plain())
    node.add(Echo(node, name, int(incarnation)))
    node.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
