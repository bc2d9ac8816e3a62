"""A conductor and a worker that only greet, for tests of the launcher. Run as a script, it is a child like any other.

What goes wrong is told by the failpoint of a child's name. The conductor tells its front ends what it is told, and
passes on what they say to the launcher.
"""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

from mstar.config import ConductorConfig, WorkerConfig
from mstar.launch import child_main
from mstar.plan.placement import parse_placement
from mstar.transfer.codec import ArenaCodec
from mstar.wire.messages import (
    Drain,
    Drained,
    Kill,
    Peer,
    ProcessExited,
    Ready,
    Register,
    RollWeights,
    StartWorker,
    StopWorker,
    Suspect,
    WeightsRolled,
)
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from mstar.worker.black_box import BlackBox

FRONT = "probe"


class StubActor:
    def __init__(self, settings, node):
        self.peer = Peer(settings.name, settings.incarnation)
        self.peers = {name: Peer(name, incarnation) for name, incarnation in settings.peers.items()}
        self.node = node
        self.fault = settings.options.failpoints.get(settings.name, "")
        node.add(self)

    def send(self, name, message):
        self.node.send(self.peer, self.peers[name], message)

    def tick(self, now):
        pass


class StubConductor(StubActor):
    def __init__(self, settings, node):
        super().__init__(settings, node)
        placements = [parse_placement(tomllib.loads(text)) for text in settings.placements.values()]
        self.missing = {name for one in placements for name in one.initial_workers()}
        for name in self.peers:
            self.send(name, Register(tuple(sorted(map(str, self.peers.values())))))

    def receive(self, now, sender, message):
        match message:
            case Register():
                self.peers[sender.name] = sender
                self.missing.discard(sender.name)
                if not self.missing:
                    self.send("launcher", Ready())
            case ProcessExited() | RollWeights() if FRONT in self.peers:
                self.send(FRONT, message)
            case Kill() | StartWorker() | StopWorker() | WeightsRolled():
                self.send("launcher", message)
            case Drain() if self.fault != "never drained":
                self.send("launcher", Drained())


class StubWorker(StubActor):
    def __init__(self, settings, node):
        super().__init__(settings, node)
        self.box = BlackBox.create(Path(settings.black_box))
        self.box.write([Suspect("r1", 7, 2)])
        self.send(settings.conductor, Register(("m.lm",)))
        self.send("launcher", Register())

    def receive(self, now, sender, message):
        if isinstance(message, Register):
            self.node.send(self.peer, sender, Register(("m.lm",)))


def main(settings):
    trouble = settings.options.failpoints.get(settings.name, "")
    if trouble == "dies" or (trouble == "dies later" and settings.incarnation):
        sys.exit("no weights here")
    if trouble == "hangs":
        time.sleep(60)
    if trouble == "starts others":
        subprocess.Popen(["sleep", "60"])
    node = ActorLoop(AddressBook.from_config(settings), settings.key, ArenaCodec())
    (StubConductor if isinstance(settings, ConductorConfig) else StubWorker)(settings, node)
    node.run()


if __name__ == "__main__":
    child_main.MAIN_MODULES |= {ConductorConfig: "stub_process", WorkerConfig: "stub_process"}
    sys.exit(child_main.main(sys.argv[1:]))
