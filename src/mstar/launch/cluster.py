"""The launcher of several hosts: Ray finds room for workers and tells when hosts die; all else is as on one machine.

    with Cluster({"tiny": "tiny.py"}, {"tiny": Path("placement.toml")}) as cluster:
        cluster.add(front_end)

The front end and the conductor run on the host on which it is made: without it nobody would be served anyway. Models
and weights have to be at the same path on every host; nothing is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import ray.util
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from mstar.config import Options
from mstar.launch.keeper import Keeper
from mstar.launch.launcher import Launcher
from mstar.launch.remote import Call, Remote
from mstar.launch.running import Running
from mstar.launch.supervisor import LaunchError
from mstar.launch.tokens import check_token
from mstar.plan.placement import Placement, Share
from mstar.wire.whereabouts import Whereabouts

NAMESPACE = "mstar"
PIN = 0.001
"""How much of "node:ADDRESS", of which every host has 1, a worker takes that may only be there."""
CALLS = 8
"""How many calls a keeper answers at the same time: one of them waits for a death."""
CLOSE_S = 2.0
"""How long keepers may take to clean up."""


class Cluster(Launcher):
    """A deployment on the hosts of a Ray cluster."""

    arguments: tuple[str, ...] = ("-P", "-m", "mstar.launch.child")
    """What a keeper's Python is given to start a child, before the child's arguments."""

    def __init__(
        self,
        models: Mapping[str, str],
        placements: Mapping[str, Path | str | None] | None = None,
        *,
        options: Options | None = None,
        is_plain: bool = False,
        address: str = "auto",
        is_open: bool = False,
    ) -> None:
        """`is_open` allows a Ray cluster that runs anybody's code: one without a token."""
        super().__init__(models, placements, options=options, is_plain=is_plain)
        self._address = address
        self._is_open = is_open

    def _whereabouts(self, stack: ExitStack) -> Whereabouts:
        """Join the Ray cluster; this host is known there by its address."""
        if not ray.is_initialized():
            _join(self._address)
            stack.callback(ray.shutdown)
        if not self._is_open:
            check_token(ray.get_runtime_context().gcs_address)
        return Whereabouts(self.directory, ray.util.get_node_ip_address())

    def _starter(self, died: Callable[[Running], None]) -> Keepers:
        first = tuple(name for shard in self._shards.values() for name in shard.first)
        return Keepers([*self._placements.values()], first, self.arguments, self.node.call, died)


def _join(address: str) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)  # what matters here is told by what fails
    try:
        ray.init(address=address, namespace=NAMESPACE, configure_logging=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        fix = "start Ray on this host (`ray start`), or say where it runs, as --cluster 10.0.0.1:6379"
        raise LaunchError(f"there is no Ray cluster to be joined at `{address}`: {error}\n  fix: {fix}") from error


class Keepers:
    """Has Ray start a keeper for each child, in room that is kept for it."""

    def __init__(
        self,
        placements: list[Placement],
        first: tuple[str, ...],
        arguments: tuple[str, ...],
        call: Call,
        died: Callable[[Running], None],
    ) -> None:
        self._shares = {name: share for one in placements for name, share in one.shares.items()}
        self._workers = {name for one in placements for name in one.workers()}
        self._arguments = arguments
        self._call = call
        self._died = died
        self._actors: dict[str, Any] = {}
        self._lives: dict[str, Remote] = {}
        self._rooms: dict[str, tuple[PlacementGroup, int]] = {}
        self._groups: list[PlacementGroup] = []
        for workers, strategy in groups(placements, first):
            group = placement_group([bundle(self._share(name)) for name in workers], strategy)
            self._groups.append(group)
            self._rooms |= {name: (group, index) for index, name in enumerate(workers)}

    def start(self, name: str) -> Remote:
        """A child that its keeper will start."""
        before = self._lives.get(name)
        if name not in self._actors or (before and before.is_keeper_dead):
            self._actors[name] = self._keeper(name)
        life = Remote(self._actors[name], self._call, self._died, lambda: self._waits(name))
        self._lives[name] = life
        return life

    def tick(self, now: float) -> None:
        """Have keepers that did not answer asked again."""
        for life in self._lives.values():
            life.tick(now)

    def rest(self, name: str) -> None:
        """End a keeper that keeps nobody. What a placement wants at least keeps its room."""
        actor = self._actors.pop(name)
        actor.close.remote().future().add_done_callback(lambda _: self._call(lambda: ray.kill(actor)))

    def close(self) -> None:
        """End all keepers, and give back their room."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in self._actors.values():
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)

    def _share(self, name: str) -> Share:
        return self._shares.get(name, Share())

    def _keeper(self, name: str) -> Any:
        here = ray.get_runtime_context().get_node_id()
        takes: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
        if name in self._workers:
            share = self._share(name)
            resources = {key: amount for key, amount in bundle(share).items() if key not in ("CPU", "GPU", "memory")}
            takes = {"num_cpus": share.cpus, "num_gpus": share.gpus, "resources": resources}
            takes["scheduling_strategy"] = "SPREAD"
            if room := self._rooms.get(name):
                takes["scheduling_strategy"] = PlacementGroupSchedulingStrategy(*room)
        keeper = ray.remote(Keeper).options(max_restarts=-1, max_task_retries=0, max_concurrency=CALLS, **takes)
        return keeper.remote(name, self._arguments, str(Path.cwd()))

    def _waits(self, name: str) -> str:
        """What there is no room for yet, as far as that is known."""
        room = self._rooms.get(name)
        if room is None or room[0].wait(0):
            return ""
        wanted = ", ".join(f"{amount:g} {what}" for what, amount in bundle(self._share(name)).items())
        return f"waits for a host with {wanted}"


def groups(placements: list[Placement], first: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """Which workers have their room found together, and how: replicas apart, the others close to each other."""
    found: list[tuple[tuple[str, ...], str]] = []
    left = dict.fromkeys(first)
    for entry in (entry for one in placements for entry in one.entries()):
        workers = tuple(name for name in entry.workers if name in left)
        if len(workers) > 1:
            found.append((workers, "SPREAD"))
            for name in workers:
                del left[name]
    return [*found, (tuple(left), "PACK")] if left else found


def bundle(share: Share) -> dict[str, float]:
    """What a worker takes, in Ray's words."""
    wanted = {"CPU": share.cpus, "GPU": share.gpus} | dict(share.resources)
    if share.host:
        wanted[f"node:{share.host}"] = PIN
    return {what: amount for what, amount in wanted.items() if amount} or {"memory": 1.0}  # Ray refuses an empty one
