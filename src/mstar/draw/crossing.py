"""Marks links that cross from one worker to another.

Ports, picks, streams and states are transparent: a value crosses if its producer op and a consumer op run on different
workers. A carried value lives on the worker that computes it. Inputs and emissions have no worker.
"""

from __future__ import annotations

from collections import defaultdict

from mstar.draw.elements import Item, Link, Subgraph, iter_subgraphs

WorkerSets = frozenset[tuple[str, ...]]


def mark_crossings(subgraph: Subgraph) -> None:
    """Set `crosses` on every link of a subgraph and of its nested subgraphs."""
    _CrossingMarker(subgraph).mark()


class _CrossingMarker:
    def __init__(self, subgraph: Subgraph) -> None:
        self.items: dict[str, Item] = {}
        self.links: list[Link] = []
        self.before: defaultdict[str, list[Link]] = defaultdict(list)
        self.after: defaultdict[str, list[Link]] = defaultdict(list)
        for inner in iter_subgraphs(subgraph):
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
        """Return the workers of the ops that an end of a link stands for."""
        item = self.items[name]
        if name in seen:
            return frozenset()
        if item.shape == "op":
            return frozenset({tuple(sorted(item.workers))} if item.workers else ())
        seen |= {name}
        if item.shape == "carry":
            producers = self.gather([link.source for link in self.before[name] if link.is_back], upward=True, seen=seen)
            if producers:
                return producers
        links = self.before[name] if upward else self.after[name]
        return self.gather([link.source if upward else link.target for link in links], upward=upward, seen=seen)

    def gather(self, names: list[str], *, upward: bool, seen: frozenset[str]) -> WorkerSets:
        workers: WorkerSets = frozenset()
        for name in names:
            workers |= self.worker_sets(name, upward=upward, seen=seen)
        return workers
