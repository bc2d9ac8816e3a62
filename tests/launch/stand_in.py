"""A conductor and a worker that only greet, for tests of the launcher. Run as a script, it is a child like any other.

What goes wrong is told by the failpoint of a child's name. The conductor tells its front ends what it is told, and
passes on what they say to the launcher.
"""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

from mstar.config import ConductorSettings, WorkerSettings
from mstar.launch import child
from mstar.plan.placement import parse_placement
from mstar.transfer.codec import ArenaCodec
from mstar.wire.messages import Drain, Drained, Gone, Hello, Kill, Peer, Ready, Renew, Renewed, Retire, Suspect, Wanted
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts
from mstar.worker.blackbox import BlackBox

FRONT = "probe"


class Greeter:
    def __init__(self, settings, node):
        self.peer = Peer(settings.name, settings.incarnation)
        self.peers = {name: Peer(name, incarnation) for name, incarnation in settings.peers.items()}
        self.node = node
        self.trouble = settings.options.failpoints.get(settings.name, "")
        node.add(self)

    def send(self, name, message):
        self.node.send(self.peer, self.peers[name], message)

    def tick(self, now):
        pass


class Conductor(Greeter):
    def __init__(self, settings, node):
        super().__init__(settings, node)
        placements = [parse_placement(tomllib.loads(text)) for text in settings.placements.values()]
        self.missing = {name for one in placements for name in one.first_workers()}
        for name in self.peers:
            self.send(name, Hello(tuple(sorted(map(str, self.peers.values())))))

    def receive(self, now, sender, message):
        match message:
            case Hello():
                self.peers[sender.name] = sender
                self.missing.discard(sender.name)
                if not self.missing:
                    self.send("launcher", Ready())
            case Gone() | Renew() if FRONT in self.peers:
                self.send(FRONT, message)
            case Kill() | Wanted() | Retire() | Renewed():
                self.send("launcher", message)
            case Drain() if self.trouble != "never drained":
                self.send("launcher", Drained())


class Worker(Greeter):
    def __init__(self, settings, node):
        super().__init__(settings, node)
        self.box = BlackBox.create(Path(settings.black_box))
        self.box.write([Suspect("r1", 7, 2)])
        self.send(settings.conductor, Hello(("m.lm",)))
        self.send("launcher", Hello())

    def receive(self, now, sender, message):
        if isinstance(message, Hello):
            self.node.send(self.peer, sender, Hello(("m.lm",)))


def main(settings):
    trouble = settings.options.failpoints.get(settings.name, "")
    if trouble == "dies" or (trouble == "dies later" and settings.incarnation):
        sys.exit("no weights here")
    if trouble == "hangs":
        time.sleep(60)
    if trouble == "starts others":
        subprocess.Popen(["sleep", "60"])
    node = Node(Whereabouts.of(settings), settings.key, ArenaCodec())
    (Conductor if isinstance(settings, ConductorSettings) else Worker)(settings, node)
    node.run()


if __name__ == "__main__":
    child.MAINS |= {ConductorSettings: "stand_in", WorkerSettings: "stand_in"}
    sys.exit(child.main(sys.argv[1:]))
