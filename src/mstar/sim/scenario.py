"""What happens in one run, drawn from a seed: how large everything is, what clients do, what goes wrong and when.

First it is drawn which kinds of trouble there are at all; so some runs see one kind in all its forms, and others see
many at once. Nothing is done here: see `world`.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace

from mstar.conductor.limits import ConductorLimits
from mstar.sim.engine import EngineCosts
from mstar.sim.models import MODELS, PLACEMENT_VARIANTS, SimRequest, TrapError, sim_model
from mstar.walk.client_input import ClientInput
from mstar.wire.slo import Slo
from mstar.worker.scheduling.scheduler import BatchLimits as WorkerLimits

TIMED_FAULTS = ("kill", "pause", "cut", "slow", "conductor")
"""Trouble that comes at a moment."""
FAULT_KINDS = (
    *TIMED_FAULTS,
    *("drop", "repeat", "delay"),
    *("leave", "stall", "burst", "deadline", "drain", "pace"),
    *("pages", "unfinished", "trap"),
)
FAULT_PROBABILITY = {"drain": 0.06, "burst": 0.15}
"""Kinds that leave little to see of others."""
FIRST_SCALING_SEED = 1_000_000_000
"""Runs with seeds from here on have workers that come and go by what there is to do, and new weights: kind "scale"."""
FIRST_SHARDED_SEED = 2_000_000_000
"""From here on there are also two models on workers of their own, each with a conductor of its own."""
DISTURBING_FAULTS = frozenset({"kill", "pause", "cut", "slow", "conductor", "drop", "repeat", "delay"})
"""Trouble that can hold up or repeat what a request does."""
TRAPS = ("raise", "crash", "huge")
REQUEST_TIMEOUT_S = 90.0
REQUEST_KEYS = 48
"""How many different requests there are, apart from their length: each is run eagerly once."""
MAX_STEPS, MAX_STALL_STEPS = 12, 40
MAX_TURNS = 5
"""How often a client is answered, at most."""


@dataclass(eq=False, slots=True)
class SimClient:
    """One client, and the one request it makes."""

    rid: str
    front: str
    model: str
    request: SimRequest
    submit_at: float
    timeout_s: float = REQUEST_TIMEOUT_S
    tenant: str = ""
    slo: Slo = field(default_factory=Slo)
    disconnect_at: float | None = None
    """When it goes away without waiting for the end."""
    stalled_until: float = 0.0
    """Until then it takes nothing of what it is given."""
    attempt: int = -1
    """The newest attempt that something was emitted by."""
    inputs: list[tuple[float, int | None]] = field(default_factory=list[tuple[float, int | None]])
    """When it says what; None is the last."""
    accepted_inputs: list[ClientInput] = field(default_factory=list[ClientInput])
    """What it has said, as far as it knows that it was heard."""
    delivered: dict[str, int] = field(default_factory=dict[str, int])
    consumed: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def hits_trap(self) -> bool:
        """Whether its trap will spring."""
        return bool(self.request.trap) and reaches_trap(
            self.model, self.request.key, self.request.steps, self.request.trap_at
        )


@functools.cache
def reaches_trap(model: str, key: int, steps: int, at: int) -> bool:
    """Whether a trap at this place is reached."""
    try:
        sim_model(model).run(SimRequest(key, steps, "raise", at))
    except TrapError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a moment: to whom, and for how long."""

    at: float
    kind: str
    target: float
    other_target: float
    """Which processes, as parts of one: how many there are follows from the placements."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """All of it."""

    seed: int
    kinds: frozenset[str]
    end: float
    """When trouble ends."""
    models: dict[str, int]
    """Which placement each model has."""
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
    """When there is a new edition of the weights."""
    model_commands: tuple[tuple[float, str, bool], ...] = ()
    """When which model is told to rest, or to be there again."""

    @property
    def is_elastic(self) -> bool:
        """Whether workers come and go."""
        return self.seed >= FIRST_SCALING_SEED

    @property
    def is_sharded(self) -> bool:
        """Whether each model has its own conductor."""
        return self.seed >= FIRST_SHARDED_SEED


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    return (
        _make_scenario(seed)
        if seed < FIRST_SCALING_SEED
        else _with_scaling(_make_scenario(seed), random.Random(f"scale/{seed}"))
    )


def _with_scaling(plain: Scenario, drawn: random.Random) -> Scenario:
    """One with workers that come and go: clients come in waves, and there may be new weights meanwhile."""
    kinds = plain.kinds - {"burst"} if drawn.random() < 0.5 else plain.kinds
    clients: list[SimClient] = []
    begins = 0.0
    for wave in range(drawn.randint(1, 3)):
        for client in _make_clients(drawn, kinds, drawn.uniform(0.1, 0.8), list(plain.models), plain.frontends):
            client.rid = f"{client.rid}w{wave}"
            client.request = replace(client.request, key=client.request.key + REQUEST_KEYS * wave)
            client.submit_at += begins
            client.disconnect_at = None if client.disconnect_at is None else client.disconnect_at + begins
            client.stalled_until += begins if client.stalled_until else 0.0
            client.inputs = [(at + begins, value) for at, value in client.inputs]
            clients.append(client)
        begins += drawn.uniform(0.5, 3.0)
    end = max(plain.end, begins)
    renewals = [drawn.uniform(0.0, end) for _ in range(drawn.choice((0, 0, 1, 2)))]
    limits = plain.conductor_limits if "burst" in kinds else ConductorLimits()
    calm, grace = drawn.choice((0.2, 0.5, 1.0)), drawn.choice((0.2, 1.0, 3.0))
    workers, strikes = drawn.randint(1, 4), _make_faults(drawn, kinds, end)
    names, count = list(plain.models), drawn.choice((0, 0, 1, 2, 4))
    rests = [(drawn.uniform(0.0, end), drawn.choice(names), drawn.random() < 0.7) for _ in range(count)]
    return replace(
        plain,
        kinds=kinds | {"scale"},
        end=end,
        workers=workers,
        clients=clients,
        faults=strikes,
        conductor_limits=replace(limits, scale_down_delay_s=calm, drain_timeout_s=grace),
        weight_rolls=tuple(sorted(renewals)),
        model_commands=tuple(sorted(rests)),
    )


def _make_scenario(seed: int) -> Scenario:
    drawn = random.Random(seed)
    kinds = frozenset(kind for kind in FAULT_KINDS if drawn.random() < FAULT_PROBABILITY.get(kind, 0.3))
    end = drawn.uniform(0.3, 2.0)
    count = 2 if seed >= FIRST_SHARDED_SEED else drawn.choice((1, 1, 2))
    models = {name: drawn.randrange(PLACEMENT_VARIANTS) for name in drawn.sample(list(MODELS), count)}
    fronts = ("f0",) if drawn.random() < 0.8 else ("f0", "f1")
    batch = drawn.choice((0.002, 0.01, 0.04))
    most = 2 * ((MAX_STALL_STEPS if "stall" in kinds else MAX_STEPS) + 2)
    most *= MAX_TURNS if "chat" in models else 1
    pages = most + drawn.randrange(10) if "pages" in kinds else 100_000
    is_burst = "burst" in kinds
    clients = _make_clients(drawn, kinds, end, list(models), fronts)
    return Scenario(
        seed=seed,
        kinds=kinds,
        end=end,
        models=models,
        workers=drawn.randint(1, 4),
        frontends=fronts,
        costs=EngineCosts(batch, batch / 10, pages, 0.2 if "unfinished" in kinds else 0.0),
        conductor_limits=ConductorLimits(drawn.randint(1, 3), drawn.randint(1, 4)) if is_burst else ConductorLimits(),
        worker_limits=WorkerLimits(drawn.choice((2, 8)), 16),
        drop_probability=drawn.uniform(0.0, 0.05) if "drop" in kinds else 0.0,
        repeat_probability=drawn.uniform(0.0, 0.1) if "repeat" in kinds else 0.0,
        max_delay_s=drawn.uniform(0.01, 0.2) if "delay" in kinds else 0.001,
        clients=clients,
        faults=_make_faults(drawn, kinds, end),
        drain_at=drawn.uniform(0.2, end) if "drain" in kinds else None,
    )


def _make_clients(
    drawn: random.Random, kinds: frozenset[str], end: float, models: list[str], fronts: tuple[str, ...]
) -> list[SimClient]:
    count = drawn.randint(1, 5)
    burst = drawn.randint(4, 10) if "burst" in kinds else 0
    together = drawn.uniform(0.0, end * 0.5)
    keys = drawn.sample(range(REQUEST_KEYS), count + burst)
    clients: list[SimClient] = []
    for number, key in enumerate(keys):
        is_one_of_many = number >= count
        at = together if is_one_of_many else drawn.uniform(0.0, end * 0.8)
        steps = drawn.randint(1, 3 if is_one_of_many else MAX_STEPS)
        is_slow = "stall" in kinds and not is_one_of_many and drawn.random() < 0.4
        if is_slow:
            steps = drawn.randint(MAX_STEPS, MAX_STALL_STEPS)
        trap = drawn.choice(TRAPS) if "trap" in kinds and drawn.random() < 0.4 else ""
        ask = SimRequest(key, steps, trap, drawn.randint(0, min(steps, MAX_STEPS)) if trap else 0)
        client = SimClient(f"r{number}", drawn.choice(fronts), drawn.choice(models), ask, at)
        if "deadline" in kinds and drawn.random() < 0.4:
            client.timeout_s = drawn.uniform(0.1, 1.5)
        if "pace" in kinds:
            client.tenant, client.slo = drawn.choice(("", "other")), _random_slo(drawn)
        if "leave" in kinds and drawn.random() < 0.5:
            client.disconnect_at = at + drawn.uniform(0.0, 0.8)
        if is_slow:
            client.stalled_until = at + drawn.uniform(0.3, 1.5)
        if client.model == "chat":
            client.inputs = _random_inputs(drawn, at)
            client.request = SimRequest(key, steps)  # whether a trap springs would depend on when it is cut
        clients.append(client)
    return clients


def _random_slo(drawn: random.Random) -> Slo:
    paces = (Slo(ttft_s=drawn.uniform(0.02, 1.0)), Slo(best_effort=True), Slo(weight=3.0, tokens_per_s=20.0), Slo())
    return drawn.choice(paces)


def _random_inputs(drawn: random.Random, at: float) -> list[tuple[float, int | None]]:
    """Some things at some moments: while it is answered, or long after."""
    says = list[tuple[float, int | None]]()
    for _ in range(drawn.randrange(MAX_TURNS)):
        at += drawn.choice((0.0, drawn.uniform(0.0, 0.1), drawn.uniform(0.0, 0.8)))
        says.append((at, drawn.randrange(1000)))
    return [*says, (at + drawn.uniform(0.0, 1.0), None)]


def _make_faults(drawn: random.Random, kinds: frozenset[str], end: float) -> list[Fault]:
    able = [kind for kind in TIMED_FAULTS if kind in kinds]
    strikes: list[Fault] = []
    at = drawn.expovariate(3.0)
    while able and at < end:
        seconds = drawn.uniform(0.1, 0.8) if drawn.random() < 0.7 else drawn.uniform(0.8, 3.0)
        strikes.append(Fault(at, drawn.choice(able), drawn.random(), drawn.random(), seconds))
        at += drawn.expovariate(3.0)
    return strikes
