"""Launcher for several hosts: Ray places workers on hosts and detects dead hosts; the rest is as on one host.

    with RayLauncher({"tiny": "tiny.py"}, {"tiny": Path("placement.toml")}) as launcher:
        launcher.add_frontend(frontend)

Front ends and conductors run on the launcher's host. Models and weights must be at the same path on every host; nothing
is copied.
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

from mstar.config import RuntimeConfig, read_env_variable
from mstar.launch.launcher import Launcher
from mstar.launch.process_handle import ProcessHandle
from mstar.launch.ray_actor import ProcessActor
from mstar.launch.remote_process import CallSoon, RemoteProcess
from mstar.launch.supervisor import LaunchError
from mstar.plan.placement import Placement, Resources
from mstar.wire.transport.address_book import AddressBook

NAMESPACE = "mstar"
HOST_PIN_AMOUNT = 0.001
"""Amount of Ray's resource "node:ADDRESS" (1 per host) that pins a worker to a host."""
MAX_CONCURRENT_CALLS = 8
"""Maximum number of concurrent calls to a process actor; one of them waits for the exit."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds to wait for process actors to clean up."""
AUTH_PROBE_TIMEOUT_S = 5.0
"""Seconds to wait for a Ray cluster to answer the probe for token authentication."""
_AUTH_PROBE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""A call without side effects that Ray answers if the caller is authorized."""
_AUTH_REJECTIONS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""The only statuses that show that the cluster requires a token. Every other outcome can have another cause."""


class RayLauncher(Launcher):
    """A deployment on the hosts of a Ray cluster."""

    child_arguments: tuple[str, ...] = ("-P", "-m", "mstar.launch.child_main")
    """Arguments of Python that start a child, before the arguments of the child."""

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
        """`is_insecure` allows a Ray cluster without token authentication."""
        super().__init__(models, placements, options=options, numpy_only=numpy_only)
        self._address = address
        self._is_insecure = is_insecure

    def _create_address_book(self, stack: ExitStack) -> AddressBook:
        """Connect to the Ray cluster; this host is identified by its IP address there."""
        if not ray.is_initialized():
            _connect_ray(self._address)
            stack.callback(ray.shutdown)
        if not self._is_insecure:
            require_auth(ray.get_runtime_context().gcs_address)
        return AddressBook(self.directory, ray.util.get_node_ip_address())

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> RayStarter:
        initial_workers = tuple(name for shard in self._shards.values() for name in shard.initial_workers)
        return RayStarter(
            [*self._placements.values()], initial_workers, self.child_arguments, self.actor_loop.call_soon, on_exit
        )


def _connect_ray(address: str) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)  # failures are raised below
    try:
        ray.init(address=address, namespace=NAMESPACE, configure_logging=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        fix = "start Ray on this host (`ray start`), or pass its address, as --cluster 10.0.0.1:6379"
        raise LaunchError(f"cannot connect to a Ray cluster at `{address}`: {error}\n  fix: {fix}") from error


def require_auth(address: str) -> None:
    """Raise LaunchError unless the Ray cluster at this address rejects a call without a token."""
    if (read_env_variable("RAY_USE_TLS") or "").lower() in ("1", "true"):
        return  # connecting has succeeded, and Ray's TLS verifies the certificates of both sides
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_AUTH_PROBE_METHOD)(b"", timeout=AUTH_PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            status = _status_of(error)
            if status in _AUTH_REJECTIONS:
                return
            what = f"cannot verify that the Ray cluster at {address} requires a token: a call without one ended with "
            fix = "check that this host reaches the address and that the cluster is healthy, then start again"
            raise LaunchError(f"{what}{status.name}\n  fix: {fix}; or pass --insecure") from error
    what = f"the Ray cluster at {address} requires no token: any host that reaches it can run code there"
    fix = "`ray get-auth-token --generate`, copy that file to every host, and start Ray with RAY_AUTH_MODE=token"
    raise LaunchError(f"{what}\n  fix: {fix}; or pass --insecure")


def _status_of(error: grpc.RpcError) -> grpc.StatusCode:
    return error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN


class RayStarter:
    """Starts one Ray actor per child, in a placement group that reserves its resources."""

    def __init__(
        self,
        placements: list[Placement],
        initial_workers: tuple[str, ...],
        arguments: tuple[str, ...],
        call_soon: CallSoon,
        on_exit: Callable[[ProcessHandle], None],
    ) -> None:
        self._resources = {
            name: resources for placement in placements for name, resources in placement.worker_resources.items()
        }
        self._workers = {name for placement in placements for name in placement.workers()}
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
        """Create the handle of a child; its Ray actor starts it once configured."""
        previous = self._processes.get(name)
        if name not in self._actors or (previous and previous.is_actor_dead):
            self._actors[name] = self._create_actor(name)
        process = RemoteProcess(self._actors[name], self._call_soon, self._on_exit, lambda: self._pending_reason(name))
        self._processes[name] = process
        return process

    def tick(self, now: float) -> None:
        """Retry calls that failed."""
        for process in self._processes.values():
            process.tick(now)

    def release(self, name: str) -> None:
        """Stop the actor of a stopped child. Resources of initial workers stay reserved."""
        actor = self._actors.pop(name)
        actor.close.remote().future().add_done_callback(lambda _: self._call_soon(lambda: ray.kill(actor)))

    def close(self) -> None:
        """Stop all actors and release their resources."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT_S)
        for actor in self._actors.values():
            ray.kill(actor)
        for group in self._placement_groups:
            remove_placement_group(group)

    def _worker_resources(self, name: str) -> Resources:
        return self._resources.get(name, Resources())

    def _create_actor(self, name: str) -> Any:
        this_host = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": this_host}
        if name in self._workers:
            resources = self._worker_resources(name)
            custom = {
                key: amount for key, amount in to_ray_bundle(resources).items() if key not in ("CPU", "GPU", "memory")
            }
            options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "resources": custom}
            options["scheduling_strategy"] = "SPREAD"
            if bundle := self._bundles.get(name):
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(*bundle)
        actor_class = ray.remote(ProcessActor).options(
            max_restarts=-1, max_task_retries=0, max_concurrency=MAX_CONCURRENT_CALLS, **options
        )
        return actor_class.remote(name, self._arguments, str(Path.cwd()), self._worker_resources(name).python)

    def _pending_reason(self, name: str) -> str:
        """Resources that the placement group waits for; empty if it is ready."""
        bundle = self._bundles.get(name)
        if bundle is None or bundle[0].wait(0):
            return ""
        resources = to_ray_bundle(self._worker_resources(name))
        return f"waits for a host with {', '.join(f'{amount:g} {key}' for key, amount in resources.items())}"


def plan_placement_groups(
    placements: list[Placement], initial_workers: tuple[str, ...]
) -> list[tuple[tuple[str, ...], str]]:
    """Group workers for placement, each with a strategy: replicas are spread over hosts, all others packed."""
    groups: list[tuple[tuple[str, ...], str]] = []
    ungrouped = dict.fromkeys(initial_workers)
    for rule in (rule for placement in placements for rule in placement.rules()):
        workers = tuple(name for name in rule.workers if name in ungrouped)
        if len(workers) > 1:
            groups.append((workers, "SPREAD"))
            for name in workers:
                del ungrouped[name]
    return [*groups, (tuple(ungrouped), "PACK")] if ungrouped else groups


def to_ray_bundle(resources: Resources) -> dict[str, float]:
    """Resources of a worker as a Ray bundle."""
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus} | dict(resources.custom)
    if resources.host:
        amounts[f"node:{resources.host}"] = HOST_PIN_AMOUNT
    return {key: amount for key, amount in amounts.items() if amount} or {"memory": 1.0}  # Ray rejects an empty one
