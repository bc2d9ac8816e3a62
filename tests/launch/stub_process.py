"""Stub conductor and worker for tests of the launcher: they only register. Run as a script it is a child process.

The failpoint of a child's name selects a fault. The conductor forwards messages between front ends and the launcher.
"""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

from mstar.conductor.liveness.watch import HEARTBEAT_INTERVAL_S
from mstar.config import ConductorConfig, WorkerConfig
from mstar.launch import child_main
from mstar.plan.placement import parse_placement
from mstar.transfer.codec import ArenaCodec
from mstar.wire.messages import (
    Drain,
    Drained,
    Heartbeat,
    Kill,
    Peer,
    ProcessExited,
    Ready,
    Register,
    RolloutFailed,
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
    def __init__(self, config, actor_loop):
        self.peer = Peer(config.name, config.incarnation)
        self.peers = {name: Peer(name, incarnation) for name, incarnation in config.peers.items()}
        self.actor_loop = actor_loop
        self.fault = config.options.failpoints.get(config.name, "")
        actor_loop.add(self)

    def send(self, name, message):
        self.actor_loop.send(self.peer, self.peers[name], message)

    def tick(self, now):
        pass


class StubConductor(StubActor):
    def __init__(self, config, actor_loop):
        super().__init__(config, actor_loop)
        placements = [parse_placement(tomllib.loads(text)) for text in config.placements.values()]
        self.missing = {name for one in placements for name in one.initial_workers()}
        self.last_heartbeat_at = 0.0
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
            case Kill() | StartWorker() | StopWorker() | WeightsRolled() | RolloutFailed():
                self.send("launcher", message)
            case Drain() if self.fault != "never drained":
                self.send("launcher", Drained())

    def tick(self, now):
        """Send heartbeats: the launcher replaces a silent conductor."""
        if now - self.last_heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self.last_heartbeat_at = now
            self.send("launcher", Heartbeat())


class StubWorker(StubActor):
    def __init__(self, config, actor_loop):
        super().__init__(config, actor_loop)
        self.box = BlackBox.create(Path(config.black_box))
        self.box.write([Suspect("r1", 7, 2)])
        self.send(config.conductor, Register(("m.lm",), config.weights_version))
        self.send("launcher", Register())

    def receive(self, now, sender, message):
        if isinstance(message, Register):
            self.actor_loop.send(self.peer, sender, Register(("m.lm",)))


def main(config):
    peer = Peer(config.name, config.incarnation)
    fault = config.options.failpoints.get(peer.worker, "")
    cause = fault.removeprefix("dies while ")
    if fault == "dies" or (cause != fault and peer != Peer(peer.worker, 0) and Path(cause).exists()):
        sys.exit("no weights here")
    if fault == "hangs":
        time.sleep(60)
    if fault == "starts others":
        subprocess.Popen(["sleep", "60"])
    actor_loop = ActorLoop(AddressBook.from_config(config), config.key, ArenaCodec())
    (StubConductor if isinstance(config, ConductorConfig) else StubWorker)(config, actor_loop)
    actor_loop.run()


if __name__ == "__main__":
    child_main.MAIN_MODULES |= {ConductorConfig: "stub_process", WorkerConfig: "stub_process"}
    sys.exit(child_main.main(sys.argv[1:]))
