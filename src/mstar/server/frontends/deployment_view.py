"""View of the deployment in a front end that is a process of its own: what the launcher reports to it.

The launcher is in another process, so the state of worker processes, the start-up phase, rolling updates and API keys
come in a report whenever they change. Without several front ends, the server state reads them from the launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from mstar.server.access.api_keys import ApiKeys, KeyRecord
from mstar.server.state import ServerState
from mstar.server.status import Phase, RolloutStatus, WorkerProcessStatus
from mstar.wire.message import Peer


class DeploymentView(msgspec.Struct, frozen=True):
    """Content of a report."""

    phase: Phase
    workers: dict[str, WorkerProcessStatus]
    """Status of each worker process."""
    rollout: RolloutStatus
    conductors_up: dict[str, bool]
    """Whether the conductor of a model is up."""
    peers: list[Peer]
    """Running conductors and workers. A worker that drains beside its successor comes before it."""
    frontends: list[Peer]
    """Running front ends."""
    keys: list[KeyRecord]
    warmup_calls: list[tuple[str, str, str, int]] | None
    """Op calls of warm-up requests: worker, model, walk and number. None before the server is ready."""


def encode_view(state: ServerState, peers: Iterable[Peer], frontends: Iterable[Peer]) -> bytes:
    """The view of the launcher, which has the same server state as a front end."""
    calls = state.warmup_calls
    view = DeploymentView(
        phase=state.phase,
        workers=dict(state.process_statuses()),
        rollout=state.rollout(),
        conductors_up={model: state.is_conductor_up(model) for model in state.served_models},
        peers=[*peers],
        frontends=[*frontends],
        keys=state.keys.records(),
        warmup_calls=None if calls is None else [(*key, count) for key, count in calls.items()],
    )
    return msgspec.msgpack.encode(view)


def decode_view(content: bytes) -> DeploymentView:
    """The view of a report."""
    return msgspec.msgpack.decode(content, type=DeploymentView)


def apply_view(state: ServerState, view: DeploymentView, own: Peer) -> None:
    """Use a view in the state of a front end. `own` is that front end."""
    state.process_statuses = lambda: view.workers
    state.rollout = lambda: view.rollout
    state.is_conductor_up = lambda model: view.conductors_up.get(model, False)
    state.peers = lambda: view.peers
    if state.siblings is not None:
        state.siblings.peers = [peer for peer in view.frontends if peer != own]
    if state.keys.records() != view.keys:
        state.keys.replace(ApiKeys.from_records(view.keys))
    if view.warmup_calls is not None:
        state.warmup_calls = Counter({(worker, model, walk): n for worker, model, walk, n in view.warmup_calls})
    if state.bridge is None and state.phase.name != "draining" and view.phase.name != "ready":
        state.phase = view.phase
