"""Draws a scenario from a seed.

The kinds of faults are drawn first (swarm testing): some runs see one kind in all its forms, others many at once.
"""

from __future__ import annotations

import random
from dataclasses import replace

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.recovery.crash_history import MAX_LONE_DEATHS
from mstar.sim.engine import EngineCosts
from mstar.sim.models import LOOKAHEAD_MODEL, MODELS, PLACEMENT_VARIANTS, SimRequest
from mstar.sim.scenario import (
    FAULT_KINDS,
    FAULT_PROBABILITY,
    FIRST_AHEAD_SEED,
    FIRST_FOCUSED_SEED,
    FIRST_KILL_SEED,
    FIRST_LOOKAHEAD_SEED,
    FIRST_OVERLAP_SEED,
    FIRST_PAUSE_SEED,
    FIRST_ROLLOUT_SEED,
    FIRST_SCALING_SEED,
    FIRST_SHARDED_SEED,
    FOCUSES,
    HANG_S,
    MAX_KILLS,
    MAX_PAUSE_AHEAD_S,
    MAX_REPLACE_S,
    MAX_STALL_STEPS,
    MAX_STEPS,
    MAX_TURNS,
    OVERLAP_FAULTS,
    PAUSES,
    REQUEST_KEYS,
    STARTED_S,
    TIMED_FAULTS,
    TRAPS,
    Fault,
    Scenario,
    SimClient,
)
from mstar.wire.slo import Slo
from mstar.worker.scheduling.scheduler import BatchLimits as WorkerLimits


def make_scenario(seed: int) -> Scenario:
    """Draw the scenario of a seed."""
    if seed < FIRST_SCALING_SEED:
        return _make_scenario(seed)
    if seed < FIRST_FOCUSED_SEED:
        return _with_scaling(_make_scenario(seed), random.Random(f"scale/{seed}"))
    if seed >= FIRST_LOOKAHEAD_SEED:
        return _with_lookaheads(seed, random.Random(f"lookahead/{seed}"))
    if seed >= FIRST_AHEAD_SEED:
        return _with_states_ahead(seed, random.Random(f"ahead/{seed}"))
    if seed >= FIRST_OVERLAP_SEED:
        return _with_overlap(seed, random.Random(f"overlap/{seed}"))
    if seed >= FIRST_KILL_SEED:
        return _with_outside_kills(seed, random.Random(f"kill/{seed}"))
    if seed >= FIRST_ROLLOUT_SEED:
        return _with_successors(seed, random.Random(f"rollout/{seed}"))
    if seed >= FIRST_PAUSE_SEED:
        return _with_long_pauses(seed, random.Random(f"pause/{seed}"))
    focus, rng = FOCUSES[seed % len(FOCUSES)], random.Random(f"focus/{seed}")
    make = {
        "divergence": _with_divergence,
        "deadlines": _with_deadlines,
        "fairness": _with_tenants,
        "preemption": _with_little_memory,
    }
    return make[focus](seed, rng)


def _with_scaling(plain: Scenario, rng: random.Random) -> Scenario:
    """Add autoscaling: clients arrive in waves, with rolling updates and model commands."""
    kinds = plain.kinds - {"burst"} if rng.random() < 0.5 else plain.kinds
    clients: list[SimClient] = []
    wave_at = 0.0
    for wave in range(rng.randint(1, 3)):
        for client in _make_clients(rng, kinds, rng.uniform(0.1, 0.8), list(plain.models), plain.frontends):
            client.rid = f"{client.rid}w{wave}"
            client.request = replace(client.request, key=client.request.key + REQUEST_KEYS * wave)
            client.submit_at += wave_at
            client.disconnect_at = None if client.disconnect_at is None else client.disconnect_at + wave_at
            client.stalled_until += wave_at if client.stalled_until else 0.0
            client.inputs = [(at + wave_at, value) for at, value in client.inputs]
            clients.append(client)
        wave_at += rng.uniform(0.5, 3.0)
    end = max(plain.end, wave_at)
    weight_rolls = [rng.uniform(0.0, end) for _ in range(rng.choice((0, 0, 1, 2)))]
    limits = plain.conductor_limits if "burst" in kinds else ConductorLimits()
    scale_down_delay_s, drain_timeout_s = rng.choice((0.2, 0.5, 1.0)), rng.choice((0.2, 1.0, 3.0))
    workers, faults = rng.randint(1, 4), _make_faults(rng, kinds, end)
    names, count = list(plain.models), rng.choice((0, 0, 1, 2, 4))
    commands = [(rng.uniform(0.0, end), rng.choice(names), rng.random() < 0.7) for _ in range(count)]
    return replace(
        plain,
        kinds=kinds | {"scale"},
        end=end,
        workers=workers,
        clients=clients,
        faults=faults,
        conductor_limits=replace(limits, scale_down_delay_s=scale_down_delay_s, drain_timeout_s=drain_timeout_s),
        weight_rolls=tuple(sorted(weight_rolls)),
        model_commands=tuple(sorted(commands)),
    )


def _with_divergence(seed: int, rng: random.Random) -> Scenario:
    """Most requests are nondeterministic, and processes die. A walk is a whole execution: each model has one walk."""
    plain = _make_scenario(seed)
    models = {rng.choice(("talk", "sing", "guide")): rng.randrange(PLACEMENT_VARIANTS)}
    kinds = plain.kinds - {"trap", "burst", "drain", "slo"} | {"divergence", rng.choice(("kill", "conductor"))}
    clients = _make_clients(rng, kinds, plain.end, list(models), plain.frontends)
    for client in clients:
        client.request = replace(client.request, is_nondeterministic=rng.random() < 0.8)
    faults = _make_faults(rng, kinds, plain.end)
    limits = ConductorLimits()
    return replace(
        plain, kinds=kinds, models=models, clients=clients, faults=faults, conductor_limits=limits, drain_at=None
    )


def _with_deadlines(seed: int, rng: random.Random) -> Scenario:
    """Audio and text with a reading rate, more of it than fits into one batch, and no faults."""
    names = rng.choice((("sing",), ("sing", "talk"), ("story", "sing")))
    clients = [
        SimClient(
            f"r{number}",
            "f0",
            rng.choice(names),
            SimRequest(key, rng.randint(4, MAX_STALL_STEPS)),
            STARTED_S + rng.uniform(0.0, 1.0),
            slo=Slo(tokens_per_s=rng.choice((2.0, 10.0, 40.0))),
        )
        for number, key in enumerate(rng.sample(range(REQUEST_KEYS), rng.randint(4, 14)))
    ]
    return _without_faults(seed, rng, "deadlines", clients, rng.choice((0.002, 0.01, 0.02)))


def _with_tenants(seed: int, rng: random.Random) -> Scenario:
    """Tenants with different weights submit more best-effort requests than can run at a time, without faults."""
    names = rng.choice((("talk",), ("guide",), ("talk", "sing")))
    weights = {f"tenant{number}": rng.choice((1.0, 1.0, 2.0, 4.0)) for number in range(rng.randint(2, 4))}
    clients: list[SimClient] = []
    for key in rng.sample(range(REQUEST_KEYS), rng.randint(16, 32)):
        tenant = rng.choice(list(weights))
        slo = Slo(best_effort=True, weight=weights[tenant])
        request = SimRequest(key, rng.randint(2, MAX_STEPS))
        at = STARTED_S + rng.uniform(0.0, 0.2)
        clients.append(SimClient(f"r{len(clients)}", "f0", rng.choice(names), request, at, tenant=tenant, slo=slo))
    return _without_faults(seed, rng, "fairness", clients, 0.01)


def _with_little_memory(seed: int, rng: random.Random) -> Scenario:
    """Many requests with states, of which few fit into the memory of a worker at the same time, without faults."""
    model = rng.choice(("talk", "sing", "guide"))
    clients: list[SimClient] = []
    for key in rng.sample(range(REQUEST_KEYS), rng.randint(4, 12)):
        request, at = SimRequest(key, rng.randint(4, MAX_STEPS)), STARTED_S + rng.uniform(0.0, 0.3)
        clients.append(SimClient(f"r{len(clients)}", "f0", model, request, at))
    plain = _without_faults(seed, rng, "pages", clients, 0.01)
    costs = replace(plain.costs, pages=3 * (MAX_STEPS + 2) + rng.randrange(10))
    return replace(plain, costs=costs, conductor_limits=ConductorLimits())


def _with_long_pauses(seed: int, rng: random.Random) -> Scenario:
    """Requests run while one process, the launcher or the whole machine is paused, and workers hang. All end ok."""
    models = rng.sample([name for name in MODELS if name != "reach"], rng.choice((1, 2)))
    clients: list[SimClient] = []
    faults: list[Fault] = []
    at = 2 * STARTED_S
    for wave in range(rng.randint(1, 4)):
        kind = rng.choice(PAUSES)
        longest = 1000 if kind in ("machine", "observer") else 100
        duration_s = HANG_S if kind == "hang" else 0.6 * longest ** rng.random()
        faults.append(Fault(at, kind, rng.random(), rng.random(), duration_s))
        for client in _make_clients(rng, frozenset(), 0.4, models, ("f0",)):
            client.rid, client.submit_at = f"{client.rid}w{wave}", at - 0.3 + client.submit_at
            client.inputs = [(at - 0.3 + when, value) for when, value in client.inputs]
            client.request = replace(client.request, key=client.request.key + REQUEST_KEYS * wave)
            client.timeout_s = 10 * HANG_S
            clients.append(client)
        at += (MAX_REPLACE_S if kind == "hang" else duration_s) + rng.uniform(0.5, 5.0)
    plain = _without_faults(seed, rng, "pauses", clients, rng.choice((0.002, 0.01, 0.04)))
    limits = ConductorLimits()
    return replace(plain, end=at, faults=faults, conductor_limits=limits, max_delay_s=rng.choice((0.001, 0.05)))


def _with_successors(seed: int, rng: random.Random) -> Scenario:
    """Requests run during rolling updates in which the launcher starts successors, without faults. All end ok."""
    models = rng.sample(list(MODELS), rng.choice((1, 2)))
    clients: list[SimClient] = []
    waves = rng.randint(2, 4)
    for wave in range(waves):
        for client in _make_clients(rng, frozenset(), 2.0, models, ("f0",)):
            client.rid, client.submit_at = f"{client.rid}w{wave}", client.submit_at + 2.0 * wave
            client.inputs = [(when + 2.0 * wave, value) for when, value in client.inputs]
            client.request = replace(client.request, key=client.request.key + REQUEST_KEYS * wave)
            clients.append(client)
    plain = _without_faults(seed, rng, "successors", clients, rng.choice((0.01, 0.04, 0.1)))
    rolls = sorted(rng.uniform(STARTED_S, 2.0 * waves) for _ in range(rng.choice((1, 1, 2))))
    limits = ConductorLimits(scale_down_delay_s=rng.choice((0.2, 0.5, 1.0)), can_start_successors=True)
    return replace(plain, end=2.0 * waves, weight_rolls=tuple(rolls), conductor_limits=limits)


def _with_overlap(seed: int, rng: random.Random) -> Scenario:
    """Long requests run during rolling updates, and short ones are submitted all the time. Half have faults."""
    models = rng.sample(list(MODELS), rng.choice((1, 1, 2)))
    end, clients = rng.uniform(6.0, 14.0), list[SimClient]()
    keys, at = iter(rng.sample(range(4 * REQUEST_KEYS), 4 * REQUEST_KEYS)), STARTED_S
    while at < end:
        steps = rng.randint(MAX_STEPS, MAX_STALL_STEPS) if rng.random() < 0.2 else rng.randint(1, 3)
        client = SimClient(f"r{len(clients)}", "f0", rng.choice(models), SimRequest(next(keys), steps), at)
        client.inputs = _random_inputs(rng, at) if client.model == "chat" else []
        clients.append(client)
        at += rng.uniform(0.1, 1.0)
    plain = _without_faults(seed, rng, "overlap", clients, rng.choice((0.02, 0.05, 0.1)))
    rolls = sorted(rng.uniform(STARTED_S, end - 2.0) for _ in range(rng.choice((1, 1, 2))))
    kinds, faults = frozenset(rng.sample(OVERLAP_FAULTS, rng.randint(1, 3))), list[Fault]()
    for _ in range(rng.choice((0, 0, 1, 3, 6))):
        at = rng.choice(rolls) + rng.uniform(0.0, 5.0)
        faults.append(Fault(at, rng.choice(sorted(kinds)), rng.random(), rng.random(), rng.uniform(0.1, 2.0)))
    delay_s, drain_s = rng.choice((0.2, 0.5, 1.0)), rng.choice((0.2, 1.0, 3.0))
    limits = ConductorLimits(scale_down_delay_s=delay_s, drain_timeout_s=drain_s, can_start_successors=True)
    return replace(
        plain,
        kinds=plain.kinds | {fault.kind for fault in faults},
        end=max(end, *(fault.at for fault in faults)) if faults else end,
        faults=faults,
        weight_rolls=tuple(rolls),
        conductor_limits=limits,
        worker_limits=WorkerLimits(8, 64),
    )


def _with_states_ahead(seed: int, rng: random.Random) -> Scenario:
    """Workers pause while prompts are read whose states move to other workers, in parts or as a whole. All end ok."""
    names = ("story", *rng.sample(("sing", "guide", "chat"), rng.randint(0, 1)))
    end = rng.uniform(5.0, 20.0)
    clients: list[SimClient] = []
    for key in rng.sample(range(REQUEST_KEYS), rng.randint(6, 14)):
        request, at = SimRequest(key, rng.randint(1, 3)), STARTED_S + rng.uniform(0.0, end)
        client = SimClient(f"r{len(clients)}", "f0", rng.choice((*names, "story")), request, at, 10 * HANG_S)
        client.inputs = _random_inputs(rng, at) if client.model == "chat" else []
        clients.append(client)
    faults, at = list[Fault](), 2 * STARTED_S
    while at < end:
        faults.append(Fault(at, "hang", rng.random(), 0.0, rng.uniform(2.0, MAX_PAUSE_AHEAD_S)))
        at += rng.uniform(0.5, 6.0)
    plain = _without_faults(seed, rng, "pauses", clients, rng.choice((0.4, 0.8, 1.2)))
    return replace(
        plain,
        kinds=frozenset({"pause"}),
        end=end + MAX_PAUSE_AHEAD_S,
        models={name: PLACEMENT_VARIANTS + variant for name, variant in plain.models.items()},
        workers=rng.randint(4, 6),
        faults=faults,
        costs=replace(plain.costs, unfinished_probability=0.5),
        conductor_limits=ConductorLimits(),
    )


def _with_lookaheads(seed: int, rng: random.Random) -> Scenario:
    """A route commits and drops lookaheads, under the faults of plain scenarios. Half of the clients send inputs."""
    plain = _make_scenario(seed)
    models = {LOOKAHEAD_MODEL: rng.randrange(PLACEMENT_VARIANTS)}
    clients = _make_clients(rng, plain.kinds, plain.end, [*models], plain.frontends)
    for client in clients:
        at = client.submit_at
        if rng.random() < 0.5:
            client.inputs = _random_inputs(rng, at)
            client.request = SimRequest(client.request.key, client.request.steps)
        else:
            client.inputs = [(at + rng.uniform(0.0, 1.0), None)]
    pages = plain.costs.pages
    if "pages" in plain.kinds:
        pages = 2 * MAX_TURNS * (MAX_STALL_STEPS if "stall" in plain.kinds else MAX_STEPS) + rng.randrange(40)
    return replace(
        plain,
        kinds=plain.kinds | {"lookahead"},
        models=models,
        clients=clients,
        costs=replace(plain.costs, pages=pages),
    )


def _with_outside_kills(seed: int, rng: random.Random) -> Scenario:
    """Workers are killed again and again at the calls of the same requests. At most one request crashes them itself.

    Without the counters of the kernel there are fewer kills from outside than make a request poison.
    """
    model, has_oom_counters = rng.choice(("talk", "sing", "story", "guide")), rng.random() < 0.6
    clients = [
        SimClient(f"r{number}", "f0", model, SimRequest(key, rng.randint(2, 5)), STARTED_S + rng.uniform(0.0, 0.1))
        for number, key in enumerate(rng.sample(range(REQUEST_KEYS), rng.randint(1, 5)))
    ]
    if rng.random() < 0.5:
        steps = clients[0].request.steps
        clients[0].request = replace(clients[0].request, trap="crash", trap_at=rng.randint(1, steps))
    at, faults = STARTED_S + 0.05, list[Fault]()
    for _ in range(rng.randint(3, MAX_KILLS) if has_oom_counters else rng.randint(1, MAX_LONE_DEATHS - 1)):
        at += rng.uniform(0.05, 0.6)
        faults.append(Fault(at, "kill", rng.random(), rng.random(), 0.0))
    plain = _without_faults(seed, rng, "kill", clients, 0.04)
    return replace(
        plain,
        kinds=frozenset({"kill", "trap"}),
        end=at + STARTED_S,
        workers=rng.randint(1, 2),
        faults=faults,
        conductor_limits=ConductorLimits(),
        has_oom_counters=has_oom_counters,
    )


def _without_faults(seed: int, rng: random.Random, kind: str, clients: list[SimClient], batch_s: float) -> Scenario:
    names = dict.fromkeys(client.model for client in clients)
    return Scenario(
        seed=seed,
        kinds=frozenset({kind}),
        end=2.0,
        models={name: rng.randrange(PLACEMENT_VARIANTS) for name in names},
        workers=rng.randint(1, 3),
        frontends=("f0",),
        costs=EngineCosts(batch_s, batch_s / 10, 100_000, 0.0),
        conductor_limits=ConductorLimits(max_running_requests=rng.randint(2, max(2, len(clients)))),
        worker_limits=WorkerLimits(rng.choice((2, 3, 8)), 64),
        drop_probability=0.0,
        repeat_probability=0.0,
        max_delay_s=0.001,
        clients=clients,
        faults=[],
        drain_at=None,
    )


def _make_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    kinds = frozenset(kind for kind in FAULT_KINDS if rng.random() < FAULT_PROBABILITY.get(kind, 0.3))
    end = rng.uniform(0.3, 2.0)
    count = 2 if seed >= FIRST_SHARDED_SEED else rng.choice((1, 1, 2))
    models = {name: rng.randrange(PLACEMENT_VARIANTS) for name in rng.sample(list(MODELS), count)}
    frontends = ("f0",) if rng.random() < 0.8 else ("f0", "f1")
    batch_s = rng.choice((0.002, 0.01, 0.04))
    max_size = 2 * ((MAX_STALL_STEPS if "stall" in kinds else MAX_STEPS) + 2)
    max_size *= MAX_TURNS if "chat" in models else 1
    pages = max_size + rng.randrange(10) if "pages" in kinds else 100_000
    is_burst = "burst" in kinds
    clients = _make_clients(rng, kinds, end, list(models), frontends)
    return Scenario(
        seed=seed,
        kinds=kinds,
        end=end,
        models=models,
        workers=rng.randint(1, 4),
        frontends=frontends,
        costs=EngineCosts(batch_s, batch_s / 10, pages, 0.2 if "unfinished" in kinds else 0.0),
        conductor_limits=ConductorLimits(rng.randint(1, 3), rng.randint(1, 4)) if is_burst else ConductorLimits(),
        worker_limits=WorkerLimits(rng.choice((2, 8)), 16),
        drop_probability=rng.uniform(0.0, 0.05) if "drop" in kinds else 0.0,
        repeat_probability=rng.uniform(0.0, 0.1) if "repeat" in kinds else 0.0,
        max_delay_s=rng.uniform(0.01, 0.2) if "delay" in kinds else 0.001,
        clients=clients,
        faults=_make_faults(rng, kinds, end),
        drain_at=rng.uniform(0.2, end) if "drain" in kinds else None,
    )


def _make_clients(
    rng: random.Random, kinds: frozenset[str], end: float, models: list[str], frontends: tuple[str, ...]
) -> list[SimClient]:
    count = rng.randint(1, 5)
    burst = rng.randint(4, 10) if "burst" in kinds else 0
    burst_at = rng.uniform(0.0, end * 0.5)
    keys = rng.sample(range(REQUEST_KEYS), count + burst)
    clients: list[SimClient] = []
    for number, key in enumerate(keys):
        is_in_burst = number >= count
        at = burst_at if is_in_burst else rng.uniform(0.0, end * 0.8)
        steps = rng.randint(1, 3 if is_in_burst else MAX_STEPS)
        is_slow = "stall" in kinds and not is_in_burst and rng.random() < 0.4
        if is_slow:
            steps = rng.randint(MAX_STEPS, MAX_STALL_STEPS)
        trap = rng.choice(TRAPS) if "trap" in kinds and rng.random() < 0.4 else ""
        request = SimRequest(key, steps, trap, rng.randint(0, min(steps, MAX_STEPS)) if trap else 0)
        client = SimClient(f"r{number}", rng.choice(frontends), rng.choice(models), request, at)
        if "deadline" in kinds and rng.random() < 0.4:
            client.timeout_s = rng.uniform(0.1, 1.5)
        if "slo" in kinds:
            client.tenant, client.slo = rng.choice(("", "other")), _random_slo(rng)
        if "disconnect" in kinds and rng.random() < 0.5:
            client.disconnect_at = at + rng.uniform(0.0, 0.8)
        if is_slow:
            client.stalled_until = at + rng.uniform(0.3, 1.5)
        if client.model == "chat":
            client.inputs = _random_inputs(rng, at)
            client.request = SimRequest(key, steps)  # whether it reaches a trap would depend on when it is interrupted
        clients.append(client)
    return clients


def _random_slo(rng: random.Random) -> Slo:
    slos = (Slo(ttft_s=rng.uniform(0.02, 1.0)), Slo(best_effort=True), Slo(weight=3.0, tokens_per_s=20.0), Slo())
    return rng.choice(slos)


def _random_inputs(rng: random.Random, at: float) -> list[tuple[float, int | None]]:
    """Draw inputs during and long after the answers."""
    inputs = list[tuple[float, int | None]]()
    for _ in range(rng.randrange(MAX_TURNS)):
        at += rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.8)))
        inputs.append((at, rng.randrange(1000)))
    return [*inputs, (at + rng.uniform(0.0, 1.0), None)]


def _make_faults(rng: random.Random, kinds: frozenset[str], end: float) -> list[Fault]:
    possible = [kind for kind in TIMED_FAULTS if kind in kinds]
    faults: list[Fault] = []
    at = rng.expovariate(3.0)
    while possible and at < end:
        duration_s = rng.uniform(0.1, 0.8) if rng.random() < 0.7 else rng.uniform(0.8, 3.0)
        faults.append(Fault(at, rng.choice(possible), rng.random(), rng.random(), duration_s))
        at += rng.expovariate(3.0)
    return faults
