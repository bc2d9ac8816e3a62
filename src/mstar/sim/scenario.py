"""What happens in one run, drawn from a seed: how large everything is, what clients do, what goes wrong and when.

First it is drawn which kinds of trouble there are at all; so some runs see one kind in all its forms, and others see
many at once. Nothing is done here: see `world`.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace

from mstar.conductor.core import Limits as ConductorLimits
from mstar.sim.engine import Costs
from mstar.sim.models import MODELS, VARIANTS, Ask, Sprung, model_of
from mstar.walk.said import Said
from mstar.wire.pace import Pace
from mstar.worker.batches import Limits as WorkerLimits

STRIKES = ("kill", "pause", "cut", "slow", "conductor")
"""Trouble that comes at a moment."""
KINDS = (
    *STRIKES,
    *("drop", "repeat", "delay"),
    *("leave", "stall", "burst", "deadline", "drain", "pace"),
    *("pages", "unfinished", "trap"),
)
SELDOM = {"drain": 0.06, "burst": 0.15}
"""Kinds that leave little to see of others."""
SCALED = 1_000_000_000
"""Runs with seeds from here on have workers that come and go by what there is to do, and new weights: kind "scale"."""
SHARDED = 2_000_000_000
"""From here on there are also two models on workers of their own, each with a conductor of its own."""
DISTURBING = frozenset({"kill", "pause", "cut", "slow", "conductor", "drop", "repeat", "delay"})
"""Trouble that can hold up or repeat what a request does."""
TRAPS = ("raise", "crash", "huge")
PATIENCE = 90.0
KEYS = 48
"""How many different requests there are, apart from their length: each is run eagerly once."""
STEPS, MANY_STEPS = 12, 40
TURNS = 5
"""How often a client is answered, at most."""


@dataclass(eq=False, slots=True)
class Client:
    """One client, and the one request it makes."""

    rid: str
    front: str
    model: str
    ask: Ask
    at: float
    patience: float = PATIENCE
    tenant: str = ""
    pace: Pace = field(default_factory=Pace)
    leaves: float | None = None
    """When it goes away without waiting for the end."""
    slow_until: float = 0.0
    """Until then it takes nothing of what it is given."""
    attempt: int = -1
    """The newest attempt that something was emitted by."""
    says: list[tuple[float, int | None]] = field(default_factory=list[tuple[float, int | None]])
    """When it says what; None is the last."""
    said: list[Said] = field(default_factory=list[Said])
    """What it has said, as far as it knows that it was heard."""
    given: dict[str, int] = field(default_factory=dict[str, int])
    taken: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_trapped(self) -> bool:
        """Whether its trap will spring."""
        return bool(self.ask.trap) and springs(self.model, self.ask.key, self.ask.steps, self.ask.at)


@functools.cache
def springs(model: str, key: int, steps: int, at: int) -> bool:
    """Whether a trap at this place is reached."""
    try:
        model_of(model).run(Ask(key, steps, "raise", at))
    except Sprung:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that goes wrong at a moment: to whom, and for how long."""

    at: float
    what: str
    who: float
    other: float
    """Which processes, as parts of one: how many there are follows from the placements."""
    seconds: float


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
    fronts: tuple[str, ...]
    costs: Costs
    limits: ConductorLimits
    worker: WorkerLimits
    drop: float
    repeat: float
    delay: float
    clients: list[Client]
    strikes: list[Strike]
    drains: float | None
    renewals: tuple[float, ...] = ()
    """When there is a new edition of the weights."""
    rests: tuple[tuple[float, str, bool], ...] = ()
    """When which model is told to rest, or to be there again."""

    @property
    def is_elastic(self) -> bool:
        """Whether workers come and go."""
        return self.seed >= SCALED

    @property
    def is_sharded(self) -> bool:
        """Whether each model has its own conductor."""
        return self.seed >= SHARDED


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    return _draw(seed) if seed < SCALED else _scaled(_draw(seed), random.Random(f"scale/{seed}"))


def _scaled(plain: Scenario, drawn: random.Random) -> Scenario:
    """One with workers that come and go: clients come in waves, and there may be new weights meanwhile."""
    kinds = plain.kinds - {"burst"} if drawn.random() < 0.5 else plain.kinds
    clients: list[Client] = []
    begins = 0.0
    for wave in range(drawn.randint(1, 3)):
        for client in _clients(drawn, kinds, drawn.uniform(0.1, 0.8), list(plain.models), plain.fronts):
            client.rid = f"{client.rid}w{wave}"
            client.ask = replace(client.ask, key=client.ask.key + KEYS * wave)
            client.at += begins
            client.leaves = None if client.leaves is None else client.leaves + begins
            client.slow_until += begins if client.slow_until else 0.0
            client.says = [(at + begins, value) for at, value in client.says]
            clients.append(client)
        begins += drawn.uniform(0.5, 3.0)
    end = max(plain.end, begins)
    renewals = [drawn.uniform(0.0, end) for _ in range(drawn.choice((0, 0, 1, 2)))]
    limits = plain.limits if "burst" in kinds else ConductorLimits()
    calm, grace = drawn.choice((0.2, 0.5, 1.0)), drawn.choice((0.2, 1.0, 3.0))
    workers, strikes = drawn.randint(1, 4), _strikes(drawn, kinds, end)
    names, count = list(plain.models), drawn.choice((0, 0, 1, 2, 4))
    rests = [(drawn.uniform(0.0, end), drawn.choice(names), drawn.random() < 0.7) for _ in range(count)]
    return replace(
        plain,
        kinds=kinds | {"scale"},
        end=end,
        workers=workers,
        clients=clients,
        strikes=strikes,
        limits=replace(limits, calm=calm, grace=grace),
        renewals=tuple(sorted(renewals)),
        rests=tuple(sorted(rests)),
    )


def _draw(seed: int) -> Scenario:
    drawn = random.Random(seed)
    kinds = frozenset(kind for kind in KINDS if drawn.random() < SELDOM.get(kind, 0.3))
    end = drawn.uniform(0.3, 2.0)
    count = 2 if seed >= SHARDED else drawn.choice((1, 1, 2))
    models = {name: drawn.randrange(VARIANTS) for name in drawn.sample(list(MODELS), count)}
    fronts = ("f0",) if drawn.random() < 0.8 else ("f0", "f1")
    batch = drawn.choice((0.002, 0.01, 0.04))
    most = 2 * ((MANY_STEPS if "stall" in kinds else STEPS) + 2)
    most *= TURNS if "chat" in models else 1
    pages = most + drawn.randrange(10) if "pages" in kinds else 100_000
    is_burst = "burst" in kinds
    clients = _clients(drawn, kinds, end, list(models), fronts)
    return Scenario(
        seed=seed,
        kinds=kinds,
        end=end,
        models=models,
        workers=drawn.randint(1, 4),
        fronts=fronts,
        costs=Costs(batch, batch / 10, pages, 0.2 if "unfinished" in kinds else 0.0),
        limits=ConductorLimits(drawn.randint(1, 3), drawn.randint(1, 4)) if is_burst else ConductorLimits(),
        worker=WorkerLimits(drawn.choice((2, 8)), 16),
        drop=drawn.uniform(0.0, 0.05) if "drop" in kinds else 0.0,
        repeat=drawn.uniform(0.0, 0.1) if "repeat" in kinds else 0.0,
        delay=drawn.uniform(0.01, 0.2) if "delay" in kinds else 0.001,
        clients=clients,
        strikes=_strikes(drawn, kinds, end),
        drains=drawn.uniform(0.2, end) if "drain" in kinds else None,
    )


def _clients(
    drawn: random.Random, kinds: frozenset[str], end: float, models: list[str], fronts: tuple[str, ...]
) -> list[Client]:
    count = drawn.randint(1, 5)
    burst = drawn.randint(4, 10) if "burst" in kinds else 0
    together = drawn.uniform(0.0, end * 0.5)
    keys = drawn.sample(range(KEYS), count + burst)
    clients: list[Client] = []
    for number, key in enumerate(keys):
        is_one_of_many = number >= count
        at = together if is_one_of_many else drawn.uniform(0.0, end * 0.8)
        steps = drawn.randint(1, 3 if is_one_of_many else STEPS)
        is_slow = "stall" in kinds and not is_one_of_many and drawn.random() < 0.4
        if is_slow:
            steps = drawn.randint(STEPS, MANY_STEPS)
        trap = drawn.choice(TRAPS) if "trap" in kinds and drawn.random() < 0.4 else ""
        ask = Ask(key, steps, trap, drawn.randint(0, min(steps, STEPS)) if trap else 0)
        client = Client(f"r{number}", drawn.choice(fronts), drawn.choice(models), ask, at)
        if "deadline" in kinds and drawn.random() < 0.4:
            client.patience = drawn.uniform(0.1, 1.5)
        if "pace" in kinds:
            client.tenant, client.pace = drawn.choice(("", "other")), _pace(drawn)
        if "leave" in kinds and drawn.random() < 0.5:
            client.leaves = at + drawn.uniform(0.0, 0.8)
        if is_slow:
            client.slow_until = at + drawn.uniform(0.3, 1.5)
        if client.model == "chat":
            client.says = _says(drawn, at)
            client.ask = Ask(key, steps)  # whether a trap springs would depend on when it is cut
        clients.append(client)
    return clients


def _pace(drawn: random.Random) -> Pace:
    paces = (Pace(first_s=drawn.uniform(0.02, 1.0)), Pace(is_batch=True), Pace(weight=3.0, read=20.0), Pace())
    return drawn.choice(paces)


def _says(drawn: random.Random, at: float) -> list[tuple[float, int | None]]:
    """Some things at some moments: while it is answered, or long after."""
    says = list[tuple[float, int | None]]()
    for _ in range(drawn.randrange(TURNS)):
        at += drawn.choice((0.0, drawn.uniform(0.0, 0.1), drawn.uniform(0.0, 0.8)))
        says.append((at, drawn.randrange(1000)))
    return [*says, (at + drawn.uniform(0.0, 1.0), None)]


def _strikes(drawn: random.Random, kinds: frozenset[str], end: float) -> list[Strike]:
    able = [kind for kind in STRIKES if kind in kinds]
    strikes: list[Strike] = []
    at = drawn.expovariate(3.0)
    while able and at < end:
        seconds = drawn.uniform(0.1, 0.8) if drawn.random() < 0.7 else drawn.uniform(0.8, 3.0)
        strikes.append(Strike(at, drawn.choice(able), drawn.random(), drawn.random(), seconds))
        at += drawn.expovariate(3.0)
    return strikes
