"""Runs in a network namespace: says numbers to an echo on another host, and watches every packet meanwhile.

It says one every 10 ms for as long as it is told, then waits for the echoes; then tells what it heard, and when.
"""

import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from tests.wire.actors import KEY, MsgpackCodec, RecordingActor, run_loop, send_cancels

SECRET = "open sesame"
CONTROL = "in plain sight"
EVERY_S = 0.01
LOCAL, REMOTE = Peer("a", 0), Peer("echo", 0)


class Capture(threading.Thread):
    """Every packet on every interface: whether a text is in it."""

    def __init__(self, *texts):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(3))
        self.texts = texts
        self.seen = set()
        self.bytes = 0

    def run(self):
        while True:
            packet = self.socket.recv(1 << 17)
            self.bytes += len(packet)
            self.seen |= {text for text in self.texts if text.encode() in packet}


class TimedActor(RecordingActor):
    """Keeps also when it heard."""

    def __init__(self, name):
        super().__init__(name)
        self.times = []

    def receive(self, now, sender, message):
        self.times.append(now)
        super().receive(now, sender, message)


def main(ip, address, seconds):
    capture = Capture(SECRET, CONTROL)
    capture.start()
    with tempfile.TemporaryDirectory() as directory:
        node = ActorLoop(AddressBook(Path(directory), ip, {REMOTE: address}), KEY, MsgpackCodec())
        node.add(ear := TimedActor("a"))
        with run_loop(node):
            said = 0
            until = time.monotonic() + float(seconds)
            while time.monotonic() < until:
                send_cancels(node, LOCAL, REMOTE, f"{SECRET} {said}")
                said += 1
                if said == 1:
                    ear.wait(lambda: ear.received)
                    sys.stdout.write("heard\n")
                    sys.stdout.flush()
                time.sleep(EVERY_S)
            ear.wait(lambda: len(ear.received) == said, 10)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
                plain.sendto(CONTROL.encode(), (address.partition(":")[0], 9))
            time.sleep(0.3)
    is_whole = ear.received_rids == [f"{REMOTE}:{SECRET} {number}" for number in range(said)]
    told = {"said": said, "is_whole": is_whole, "times": ear.times, "seen": sorted(capture.seen)}
    sys.stdout.write(json.dumps(told | {"bytes": capture.bytes, "counters": dict(node.counters)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
