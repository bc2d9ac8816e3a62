"""A scenario as data: sizes, client behavior, and which faults occur when.

`scenario_generator` draws it from a seed; `simulation` executes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from mstar.conductor.limits import ConductorLimits
from mstar.sim.engine import EngineCosts
from mstar.sim.models import SimRequest, TrapError, sim_model
from mstar.walk.client_input import ClientInput
from mstar.wire.slo import Slo
from mstar.worker.scheduling.scheduler import BatchLimits as WorkerLimits

TIMED_FAULTS = ("kill", "pause", "cut", "slow", "conductor")
"""Faults at a point in time."""
FAULT_KINDS = (
    *TIMED_FAULTS,
    *("drop", "repeat", "delay"),
    *("disconnect", "stall", "burst", "deadline", "drain", "slo"),
    *("pages", "unfinished", "trap"),
)
FAULT_PROBABILITY = {"drain": 0.06, "burst": 0.15}
"""Probability of a kind other than 0.3. These two suppress the effects of other kinds."""
FIRST_SCALING_SEED = 1_000_000_000
"""Scenarios from this seed on have autoscaling, rolling updates and model loading (kind "scale")."""
FIRST_SHARDED_SEED = 2_000_000_000
"""Scenarios from this seed on also have two models, each with its own conductor and workers."""
FIRST_FOCUSED_SEED = 3_000_000_000
"""Scenarios from this seed on focus on one property each: see `FOCUSES`."""
FIRST_PAUSE_SEED = 4_000_000_000
"""Scenarios from this seed on have long pauses of processes, of the launcher and of the machine."""
FIRST_ROLLOUT_SEED = 5_000_000_000
"""Scenarios from this seed on have rolling updates with successors on a single host. Every second one is elastic."""
FIRST_KILL_SEED = 6_000_000_000
"""Scenarios from this seed on have many kills of workers from outside, some next to a request that crashes them."""
FIRST_OVERLAP_SEED = 7_000_000_000
"""Scenarios from this seed on have rolling updates during requests that take longer than `drain_timeout_s`, and faults:
kills of old workers and successors, conductors that die, weights that cannot be loaded."""
FIRST_AHEAD_SEED = 8_000_000_000
"""Scenarios from this seed on have components whose ops run on different workers, prompts that take long, parts of
states that are sent ahead, and pauses of workers."""
FIRST_LOOKAHEAD_SEED = 9_000_000_000
"""Scenarios from this seed on have a route that offers walks early, and commits or drops them."""
STARTED_S = 0.5
"""Seconds until all processes of a focused scenario without faults are up and know each other."""
FOCUSES = ("divergence", "deadlines", "fairness", "preemption")
"""Properties of focused scenarios, by seed modulo 4."""
PAUSES = ("pause", "observer", "machine", "hang")
"""Faults of scenarios with long pauses: of one process, of the launcher, of all, and of a worker for ever."""
HANG_S = 1000.0
"""Seconds of a pause that counts as a hang."""
MAX_PAUSE_AHEAD_S = 15.0
"""Maximum seconds of a pause of a worker that can have been sent parts of states."""
MAX_KILLS = 10
"""Maximum kills from outside in one scenario: fewer than `max_retries`, with those of a request that crashes."""
MAX_REPLACE_S = 130.0
"""Maximum seconds until a worker that hangs is replaced."""
OVERLAP_FAULTS = ("kill", "pause", "slow", "conductor", "broken")
"""Faults during rolling updates; "broken" weights cannot be loaded while the fault lasts."""
DISTURBING_FAULTS = frozenset({"kill", "pause", "cut", "slow", "conductor", "drop", "repeat", "delay", "broken"})
"""Faults that can delay a request or make it repeat work."""
TRAPS = ("raise", "crash", "huge")
REQUEST_TIMEOUT_S = 90.0
REQUEST_KEYS = 48
"""Number of different requests apart from their length. Each is executed eagerly once."""
MAX_STEPS = 12
MAX_STALL_STEPS = 40
"""Maximum steps of a request whose client stalls."""
MAX_TURNS = 5
"""Maximum turns of a chat."""


@dataclass(eq=False, slots=True)
class SimClient:
    """One client with one request."""

    rid: str
    front: str
    model: str
    request: SimRequest
    submit_at: float
    timeout_s: float = REQUEST_TIMEOUT_S
    tenant: str = ""
    slo: Slo = field(default_factory=Slo)
    disconnect_at: float | None = None
    """Time at which it disconnects; None if it waits for the end."""
    stalled_until: float = 0.0
    """Time until which it consumes nothing."""
    attempt: int = -1
    """The newest attempt that sent it output."""
    inputs: list[tuple[float, int | None]] = field(default_factory=list[tuple[float, int | None]])
    """Times and values of its inputs; None is the end of inputs."""
    accepted_inputs: list[ClientInput] = field(default_factory=list[ClientInput])
    """Inputs that it knows to be accepted."""
    delivered: dict[str, int] = field(default_factory=dict[str, int])
    consumed: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def hits_trap(self) -> bool:
        """Whether its request reaches its trap."""
        return bool(self.request.trap) and reaches_trap(
            self.model, self.request.key, self.request.steps, self.request.trap_at
        )


@functools.cache
def reaches_trap(model: str, key: int, steps: int, at: int) -> bool:
    """Return whether a request reaches a trap at this place."""
    try:
        sim_model(model).run(SimRequest(key, steps, "raise", at))
    except TrapError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a point in time."""

    at: float
    kind: str
    target: float
    other_target: float
    """Processes as fractions of 1: their number follows from the placements."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that happens in one run."""

    seed: int
    kinds: frozenset[str]
    end: float
    """Time of the last fault."""
    models: dict[str, int]
    """Placement variant of each model."""
    workers: int
    frontends: tuple[str, ...]
    costs: EngineCosts
    conductor_limits: ConductorLimits
    worker_limits: WorkerLimits
    drop_probability: float
    repeat_probability: float
    max_delay_s: float
    clients: list[SimClient]
    faults: list[Fault]
    drain_at: float | None
    weight_rolls: tuple[float, ...] = ()
    """Times of rolling updates of the weights."""
    model_commands: tuple[tuple[float, str, bool], ...] = ()
    """Time, model, and whether it is unloaded (or loaded)."""
    has_oom_counters: bool = True
    """Whether the launcher can tell a kill from outside from one for lack of memory."""

    @property
    def is_elastic(self) -> bool:
        """Whether workers are autoscaled."""
        if FIRST_ROLLOUT_SEED <= self.seed < FIRST_KILL_SEED:
            return bool(self.seed % 2)
        if FIRST_OVERLAP_SEED <= self.seed < FIRST_AHEAD_SEED:
            return self.seed % 4 == 3
        return FIRST_SCALING_SEED <= self.seed < FIRST_FOCUSED_SEED

    @property
    def has_long_pauses(self) -> bool:
        """Whether processes pause for seconds up to a minute, or hang."""
        return FIRST_PAUSE_SEED <= self.seed < FIRST_ROLLOUT_SEED or (
            FIRST_AHEAD_SEED <= self.seed < FIRST_LOOKAHEAD_SEED
        )

    @property
    def is_sharded(self) -> bool:
        """Whether each model has its own conductor."""
        return FIRST_SHARDED_SEED <= self.seed < FIRST_FOCUSED_SEED
