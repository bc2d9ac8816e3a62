"""The processes of the workers of a deployment: which one is current, and the successors of rolling updates.

A worker of the placement has one process, and during a rolling update two: the old one and its successor, which have
different names (`process_names`). They are children like all others. Only this module knows that they belong together:

| event | what happens |
|---|---|
| the conductor needs a worker of which no process is needed | its first process starts |
| the conductor starts a worker beside a process that serves | the other process starts, as its successor |
| the old process exits, for any reason | it is not restarted: the successor takes its place |
| the successor exits | it is restarted, as long as the conductor does not stop it |
| the update is rolled back | the old process is the one that is restarted; the successor finishes its requests |
| the conductor exits after a rollback | the successor is killed: a new conductor would continue the update |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from signal import SIGKILL

from mstar.launch.child import Child
from mstar.launch.restart_backoff import RestartBackoff
from mstar.wire.message import process_names
from mstar.wire.messages import StartWorker


def create_children(worker: str, *, is_needed: bool, has_successors: bool) -> dict[str, Child]:
    """Create the children of a worker, by process name."""
    first, second = process_names(worker)
    children = {first: Child(first, is_needed=is_needed)}
    return children | {second: Child(second, is_needed=False)} if has_successors else children


def children_of(worker: str, children: Mapping[str, Child]) -> list[Child]:
    """Return the children of a worker; empty if it is unknown."""
    return [children[name] for name in process_names(worker) if name in children]


def current_children(children: Mapping[str, Child]) -> dict[str, Child]:
    """Return the current child of each conductor and worker: a successor as soon as it is up."""
    current: dict[str, Child] = {}
    for child in children.values():
        best = current.get(child.peer.worker)
        if best is None or _rank(child) > _rank(best):
            current[child.peer.worker] = child
    return current


def _rank(child: Child) -> tuple[bool, bool, bool, bool]:
    return child.is_up, child.is_needed, child.is_successor, not child.is_rolled_back


def request_start(now: float, message: StartWorker, children: Mapping[str, Child]) -> None:
    """Have a worker started, or its successor. One that runs or starts stays as it is."""
    own = children_of(message.worker, children)
    if not own:
        return
    needed = [child for child in own if child.is_needed]
    if message.beside is not None:
        # If the other process has exited meanwhile, its next incarnation has the new weights as well.
        if len(own) > len(needed) and [child.peer for child in needed if child.process] == [message.beside]:
            successor = next(child for child in own if not child.is_needed)
            successor.is_needed, successor.is_successor, successor.start_at = True, True, now
            successor.is_rolled_back = False
            successor.backoff = RestartBackoff()  # its failed starts were those of an earlier update
    elif not needed:
        own[0].is_needed, own[0].start_at = True, now
    elif message.skip_backoff:
        for child in needed:
            child.start_at = now


def on_exited(child: Child, children: Mapping[str, Child]) -> None:
    """Handle the exit of a process: one that has a successor is not needed any more."""
    for other in children_of(child.peer.worker, children):
        if other is not child and other.is_successor:
            other.is_successor = False
            child.is_needed, child.exit_reason = False, ""


def on_rolled_back(workers: Iterable[str], children: Mapping[str, Child]) -> None:
    """Handle the rollback of an update: its successors do not take the place of their workers."""
    for child in (child for worker in workers for child in children_of(worker, children) if child.is_successor):
        child.is_successor, child.is_rolled_back = False, True


def kill_rolled_back(now: float, workers: Iterable[str], children: Mapping[str, Child]) -> None:
    """Kill the successors of an update that was rolled back under a conductor that has exited."""
    for child in (child for worker in workers for child in children_of(worker, children)):
        if child.is_rolled_back and child.is_needed:
            child.stop(now)
            if child.process:
                child.process.send_signal(SIGKILL)
