"""Run in a network namespace: sends messages to an echo on another host, and captures all packets.

It sends one message every 10 ms for the given seconds, waits for the echoes, and prints a report as JSON.
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
INTERVAL_S = 0.01
LOCAL, REMOTE = Peer("a", 0), Peer("echo", 0)


class Capture(threading.Thread):
    """Captures all packets on all interfaces, and searches them for texts."""

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
    """Also records arrival times."""

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
        actor_loop = ActorLoop(AddressBook(Path(directory), ip, {REMOTE: address}), KEY, MsgpackCodec())
        actor_loop.add(actor := TimedActor("a"))
        with run_loop(actor_loop):
            sent = 0
            deadline = time.monotonic() + float(seconds)
            while time.monotonic() < deadline:
                send_cancels(actor_loop, LOCAL, REMOTE, f"{SECRET} {sent}")
                sent += 1
                if sent == 1:
                    actor.wait(lambda: actor.received)
                    sys.stdout.write("received\n")
                    sys.stdout.flush()
                time.sleep(INTERVAL_S)
            actor.wait(lambda: len(actor.received) == sent, 10)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
                plain.sendto(CONTROL.encode(), (address.partition(":")[0], 9))
            time.sleep(0.3)
    is_whole = actor.received_rids == [f"{REMOTE}:{SECRET} {number}" for number in range(sent)]
    report = {"sent": sent, "is_whole": is_whole, "times": actor.times, "seen": sorted(capture.seen)}
    sys.stdout.write(json.dumps(report | {"bytes": capture.bytes, "counters": dict(actor_loop.counters)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
