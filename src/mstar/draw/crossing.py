"""Which links of a drawing lead from one worker to another.

Ports, picks, streams and states are passed through: a value crosses when the op that makes it and an op that takes
it are on different workers. A carried value lives where the loop makes it. Inputs and emissions are on no worker.
"""

from __future__ import annotations

from collections import defaultdict

from mstar.draw.elements import Item, Link, Subgraph, iter_subgraphs

WorkerSets = frozenset[tuple[str, ...]]


def mark_crossings(sheet: Subgraph) -> None:
    """Set `crosses` on every link, on this sheet and those inside it, that leads to another worker."""
    _CrossingMarker(sheet).mark()


class _CrossingMarker:
    def __init__(self, sheet: Subgraph) -> None:
        self.items: dict[str, Item] = {}
        self.links: list[Link] = []
        self.before: defaultdict[str, list[Link]] = defaultdict(list)
        self.after: defaultdict[str, list[Link]] = defaultdict(list)
        for inner in iter_subgraphs(sheet):
            self.items |= inner.items
            self.links += inner.links
        for link in self.links:
            self.before[link.target].append(link)
            self.after[link.source].append(link)

    def mark(self) -> None:
        for link in self.links:
            makers = self.worker_sets(link.source, upward=True, seen=frozenset())
            takers = self.worker_sets(link.target, upward=False, seen=frozenset())
            link.crosses = any(maker != taker for maker in makers for taker in takers)

    def worker_sets(self, name: str, *, upward: bool, seen: frozenset[str]) -> WorkerSets:
        """The workers of the ops that a link's end stands for."""
        item = self.items[name]
        if name in seen:
            return frozenset()
        if item.shape == "op":
            return frozenset({tuple(sorted(item.workers))} if item.workers else ())
        seen |= {name}
        if item.shape == "carry":
            made = self.gather([link.source for link in self.before[name] if link.is_back], upward=True, seen=seen)
            if made:
                return made
        links = self.before[name] if upward else self.after[name]
        return self.gather([link.source if upward else link.target for link in links], upward=upward, seen=seen)

    def gather(self, names: list[str], *, upward: bool, seen: frozenset[str]) -> WorkerSets:
        found: WorkerSets = frozenset()
        for name in names:
            found |= self.worker_sets(name, upward=upward, seen=seen)
        return found
