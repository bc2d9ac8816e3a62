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

import grpc
import ray
import ray.util
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from mstar.config import RuntimeConfig
from mstar.launch.launcher import Launcher
from mstar.launch.process_handle import ProcessHandle
from mstar.launch.ray_actor import ProcessActor
from mstar.launch.remote_process import CallSoon, RemoteProcess
from mstar.launch.supervisor import LaunchError
from mstar.plan.placement import Placement, Resources
from mstar.wire.transport.address_book import AddressBook

NAMESPACE = "mstar"
HOST_PIN_AMOUNT = 0.001
"""How much of "node:ADDRESS", of which every host has 1, a worker takes that may only be there."""
MAX_CONCURRENT_CALLS = 8
"""How many calls a keeper answers at the same time: one of them waits for a death."""
CLOSE_TIMEOUT_S = 2.0
"""How long keepers may take to clean up."""
AUTH_PROBE_TIMEOUT_S = 5.0
"""Seconds to wait for a Ray cluster to answer the probe for token authentication."""
_AUTH_PROBE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call without side effects that Ray answers if the caller is authorized."""


class RayLauncher(Launcher):
    """A deployment on the hosts of a Ray cluster."""

    child_arguments: tuple[str, ...] = ("-P", "-m", "mstar.launch.child_main")
    """What a keeper's Python is given to start a child, before the child's arguments."""

    def __init__(
        self,
        models: Mapping[str, str],
        placements: Mapping[str, Path | str | None] | None = None,
        *,
        options: RuntimeConfig | None = None,
        numpy_only: bool = False,
        address: str = "auto",
        is_insecure: bool = False,
    ) -> None:
        """`is_open` allows a Ray cluster that runs anybody's code: one without a token."""
        super().__init__(models, placements, options=options, numpy_only=numpy_only)
        self._address = address
        self._is_insecure = is_insecure

    def _create_address_book(self, stack: ExitStack) -> AddressBook:
        """Join the Ray cluster; this host is known there by its address."""
        if not ray.is_initialized():
            _connect_ray(self._address)
            stack.callback(ray.shutdown)
        if not self._is_insecure:
            require_auth(ray.get_runtime_context().gcs_address)
        return AddressBook(self.directory, ray.util.get_node_ip_address())

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> RayStarter:
        first = tuple(name for shard in self._shards.values() for name in shard.initial_workers)
        return RayStarter([*self._placements.values()], first, self.child_arguments, self.actor_loop.call_soon, on_exit)


def _connect_ray(address: str) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)  # what matters here is told by what fails
    try:
        ray.init(address=address, namespace=NAMESPACE, configure_logging=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        fix = "start Ray on this host (`ray start`), or say where it runs, as --cluster 10.0.0.1:6379"
        raise LaunchError(f"there is no Ray cluster to be joined at `{address}`: {error}\n  fix: {fix}") from error


def require_auth(address: str) -> None:
    """Raise LaunchError if the Ray cluster at this address answers a call without a token."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_AUTH_PROBE_METHOD)(b"", timeout=AUTH_PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return  # rejected, or the cluster uses TLS
    what = f"the Ray cluster at {address} requires no token: any host that reaches it can run code there"
    fix = "`ray get-auth-token --generate`, copy that file to every host, and start Ray with RAY_AUTH_MODE=token"
    raise LaunchError(f"{what}\n  fix: {fix}; or pass --insecure")


class RayStarter:
    """Has Ray start a keeper for each child, in room that is kept for it."""

    def __init__(
        self,
        placements: list[Placement],
        initial_workers: tuple[str, ...],
        arguments: tuple[str, ...],
        call_soon: CallSoon,
        on_exit: Callable[[ProcessHandle], None],
    ) -> None:
        self._resources = {name: share for one in placements for name, share in one.worker_resources.items()}
        self._workers = {name for one in placements for name in one.workers()}
        self._arguments = arguments
        self._call_soon = call_soon
        self._on_exit = on_exit
        self._actors: dict[str, Any] = {}
        self._processes: dict[str, RemoteProcess] = {}
        self._bundles: dict[str, tuple[PlacementGroup, int]] = {}
        self._placement_groups: list[PlacementGroup] = []
        for workers, strategy in plan_placement_groups(placements, initial_workers):
            group = placement_group([to_ray_bundle(self._worker_resources(name)) for name in workers], strategy)
            self._placement_groups.append(group)
            self._bundles |= {name: (group, index) for index, name in enumerate(workers)}

    def start(self, name: str) -> RemoteProcess:
        """A child that its keeper will start."""
        before = self._processes.get(name)
        if name not in self._actors or (before and before.is_actor_dead):
            self._actors[name] = self._create_actor(name)
        life = RemoteProcess(self._actors[name], self._call_soon, self._on_exit, lambda: self._pending_reason(name))
        self._processes[name] = life
        return life

    def tick(self, now: float) -> None:
        """Have keepers that did not answer asked again."""
        for life in self._processes.values():
            life.tick(now)

    def release(self, name: str) -> None:
        """End a keeper that keeps nobody. What a placement wants at least keeps its room."""
        actor = self._actors.pop(name)
        actor.close.remote().future().add_done_callback(lambda _: self._call_soon(lambda: ray.kill(actor)))

    def close(self) -> None:
        """End all keepers, and give back their room."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT_S)
        for actor in self._actors.values():
            ray.kill(actor)
        for group in self._placement_groups:
            remove_placement_group(group)

    def _worker_resources(self, name: str) -> Resources:
        return self._resources.get(name, Resources())

    def _create_actor(self, name: str) -> Any:
        here = ray.get_runtime_context().get_node_id()
        takes: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
        if name in self._workers:
            share = self._worker_resources(name)
            resources = {
                key: amount for key, amount in to_ray_bundle(share).items() if key not in ("CPU", "GPU", "memory")
            }
            takes = {"num_cpus": share.cpus, "num_gpus": share.gpus, "resources": resources}
            takes["scheduling_strategy"] = "SPREAD"
            if room := self._bundles.get(name):
                takes["scheduling_strategy"] = PlacementGroupSchedulingStrategy(*room)
        keeper = ray.remote(ProcessActor).options(
            max_restarts=-1, max_task_retries=0, max_concurrency=MAX_CONCURRENT_CALLS, **takes
        )
        return keeper.remote(name, self._arguments, str(Path.cwd()))

    def _pending_reason(self, name: str) -> str:
        """What there is no room for yet, as far as that is known."""
        room = self._bundles.get(name)
        if room is None or room[0].wait(0):
            return ""
        wanted = ", ".join(f"{amount:g} {what}" for what, amount in to_ray_bundle(self._worker_resources(name)).items())
        return f"waits for a host with {wanted}"


def plan_placement_groups(
    placements: list[Placement], initial_workers: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]]:
    """Which workers have their room found together, and how: replicas apart, the others close to each other."""
    found: list[tuple[tuple[str, ...], str]] = []
    left = dict.fromkeys(initial_workers)
    for entry in (entry for one in placements for entry in one.rules()):
        workers = tuple(name for name in entry.workers if name in left)
        if len(workers) > 1:
            found.append((workers, "SPREAD"))
            for name in workers:
                del left[name]
    return [*found, (tuple(left), "PACK")] if left else found


def to_ray_bundle(resources: Resources) -> dict[str, float]:
    """What a worker takes, in Ray's words."""
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus} | dict(resources.custom)
    if resources.host:
        wanted[f"node:{resources.host}"] = HOST_PIN_AMOUNT
    return {what: amount for what, amount in wanted.items() if amount} or {"memory": 1.0}  # Ray refuses an empty one
