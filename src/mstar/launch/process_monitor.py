"""Monitor of running processes: their CPU time, which is a sign of life, and conductors that hang.

A process that computes can be late with its heartbeats. Conductors decide about workers, and get what is sampled here.
Conductors themselves are watched by the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping

from mstar.conductor.liveness.watch import ConductorWatch
from mstar.launch.child import Child
from mstar.launch.conductor_links import ConductorLinks
from mstar.wire.messages import Kill, Peer, StillComputing

SAMPLE_INTERVAL_S = 0.4
"""Seconds between two samples of the CPU time of processes. A conductor counts a worker as unresponsive after 1.1 s."""
BUSY_FRACTION = 0.1
"""Minimum CPU share of an interval for a process to count as computing."""


class ProcessMonitor:
    """Signs of life of the processes of one deployment."""

    def __init__(self, children: Mapping[str, Child], conductors: ConductorLinks) -> None:
        self._children = children
        self._conductors = conductors
        self._watch = ConductorWatch()
        self._sampled_at = 0.0

    def on_message(self, now: float, sender: Peer) -> None:
        """A message arrived: a sign of life of a conductor."""
        if self._conductors.is_current(sender):
            self._watch.on_message(now, sender)

    def forget(self, peer: Peer) -> None:
        """Stop watching a process that has exited."""
        self._watch.forget(peer)

    def sample(self, now: float) -> None:
        """Report processes that use CPU time: their heartbeats can be late."""
        if now - self._sampled_at < SAMPLE_INTERVAL_S:
            return
        elapsed_s, self._sampled_at = now - self._sampled_at, now
        for child in self._children.values():
            if child.process:
                cpu_s = child.process.cpu_seconds()
                if cpu_s - child.cpu_s > BUSY_FRACTION * elapsed_s:
                    self._on_computing(now, child.peer)
                child.cpu_s = cpu_s

    def _on_computing(self, now: float, peer: Peer) -> None:
        if self._conductors.is_current(peer):
            self._watch.on_computing(now, peer)
        else:
            self._conductors.send_to_conductor_of(peer.name, StillComputing(peer))

    def find_hung(self, now: float) -> Kill | None:
        """The conductor that must be killed now. Must be called on every tick."""
        hung = self._watch.find_hung(now)
        return Kill(hung[0], f"did not respond for {hung[1]:.1f} s") if hung else None
