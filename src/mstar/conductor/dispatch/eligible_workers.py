"""The workers that walks can use at one moment, by worker set, and which of them run the fewest walks.

The same object serves all walks until a worker starts, is lost, drains, or stops or begins to respond. So finding the
least loaded of a set takes the same time for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from mstar.conductor.indexed_heap import IndexedHeap
from mstar.wire.messages import Peer


class Candidates:
    """The eligible workers of one worker set."""

    def __init__(
        self, names: Sequence[str], peers: Mapping[str, Peer], unresponsive: Set[Peer], load: Callable[[str], int]
    ) -> None:
        eligible = [name for name in names if name in peers]
        responsive = [name for name in eligible if peers[name] not in unresponsive]
        self.has_responsive = bool(responsive)
        self.names = responsive or eligible
        """Those that respond or, if none does, all that are eligible."""
        self.peers = {name: peers[name] for name in eligible}
        self._heap = IndexedHeap(self.names, load)

    def on_load_changed(self, name: str) -> None:
        """Note that a worker runs another number of walks."""
        self._heap.update(name)

    def least_loaded(self) -> int:
        """Return the index in `names` of the worker with the fewest running walks."""
        return self._heap.smallest()[1]


class EligibleWorkers:
    """The processes that a walk can use, by worker."""

    def __init__(
        self, peers: Mapping[str, Peer], unresponsive: Set[Peer] = frozenset(), load: Callable[[str], int] = lambda _: 0
    ) -> None:
        self.peers = peers
        self.unresponsive = unresponsive
        """Peers that do not respond, eligible or not."""
        self._load = load
        """Number of walks that a worker runs."""
        self._candidates: dict[tuple[str, ...], Candidates] = {}
        self._sets_of: dict[str, list[Candidates]] = {}
        """By worker, those of the worker sets that it is in."""

    def of(self, worker_set: tuple[str, ...]) -> Candidates:
        """Return the eligible workers of a worker set."""
        candidates = self._candidates.get(worker_set)
        if candidates is None:
            candidates = Candidates(worker_set, self.peers, self.unresponsive, self._load)
            self._candidates[worker_set] = candidates
            for name in candidates.names:
                self._sets_of.setdefault(name, []).append(candidates)
        return candidates

    def on_load_changed(self, name: str) -> None:
        """Note that a worker runs another number of walks."""
        for candidates in self._sets_of.get(name, ()):
            candidates.on_load_changed(name)
