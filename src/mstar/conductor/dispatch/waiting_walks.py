"""Walks that wait for workers, in groups of which either all or none have an eligible worker.

Which workers a walk can use depends on the walk, on the weights version of its request and, before that is chosen, on
whether the request was submitted again. So a tick looks at the groups, not at all walks that wait. Nothing is decided
here; see `walk_dispatch` and `timeouts`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from mstar.conductor.requests import Request, WalkRun, is_resubmitted

GroupKey = tuple[str, str, int | None, bool]
"""Model, walk, weights version, and whether the request was submitted again."""


class WaitingWalks:
    """The walks of one conductor that have no workers yet."""

    def __init__(self) -> None:
        self._numbers = count()
        self._places: dict[str, tuple[int, GroupKey]] = {}
        """By request, its place in the order of waiting requests, and the group of its walk."""
        self._groups: dict[GroupKey, dict[str, tuple[Request, WalkRun]]] = {}
        """By request, the walks that wait, those that have waited for the longest time first. Some may be over."""

    def add(self, request: Request) -> None:
        """Add the walk of a request. Idempotent."""
        run = request.walk_run
        assert run is not None
        key = (request.submit.model, run.call.name, request.weights_version, is_resubmitted(request.submit))
        number, previous = self._places.get(request.rid, (None, key))
        if (group := self._groups.get(previous)) is not None:
            if previous == key and group.get(request.rid, (None, None))[1] is run:
                return
            group.pop(request.rid, None)
        self._places[request.rid] = (next(self._numbers) if number is None else number, key)
        self._groups.setdefault(key, {})[request.rid] = (request, run)

    def remove(self, rid: str) -> None:
        """Remove a request whose walk has started, or that has ended."""
        if (place := self._places.pop(rid, None)) is not None and (group := self._groups.get(place[1])) is not None:
            group.pop(rid, None)

    def find(self, is_wanted: Callable[[Request], bool]) -> list[Request]:
        """Return the requests for which this is true, in the order in which they began to wait.

        In each group it is called for one walk after the other, longest wait first, until it is false. So it must be
        false for all walks of a group that have waited for less time than one for which it is false.
        """
        matches: list[Request] = []
        for key, group in list(self._groups.items()):
            over: list[str] = []
            for rid, (request, run) in group.items():
                if request.walk_run is not run or not run.is_waiting:
                    over.append(rid)
                elif is_wanted(request):
                    matches.append(request)
                else:
                    break
            for rid in over:
                del group[rid]
            if not group:
                del self._groups[key]
        return sorted(matches, key=lambda request: self._places[request.rid][0])
