"""`python -m bench peers`: mstar against other model servers and against vLLM's server, each as its authors advise."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.claims import Claim, paired_ratio
from bench.peers import text_comparison
from bench.peers.speech_comparison import CLOSED_LOOP_CLIENTS, OPEN_LOOP, OURS, Comparison, servers
from bench.peers.vllm_peer import find_allocator


def peers() -> Claim:
    """A composite model at 1 to 64 clients: requests a second of mstar relative to each other server."""
    find_allocator()  # vLLM comes last: what it lacks is said before minutes of measurement
    with servers() as (there, absent):
        for name, reason in absent.items():
            print(f"{name} is not in the race: {reason}")
        race = Comparison(there)
        race.warm_up()
        race.run()
    race.print_tables()
    others = [name for name in there if name != OURS]
    if not others:
        raise RuntimeError("no other server is installed\n  fix: python -m bench.peers.install")
    times = {
        clients: {
            name: round(paired_ratio(race.rates(OURS, clients), race.rates(name, clients)), 2)
            for name in others
            if all(race.rates(name, clients))
        }
        for clients in CLOSED_LOOP_CLIENTS
    }
    value, best, clients = min((ratio, name, clients) for clients, row in times.items() for name, ratio in row.items())
    more: dict[str, Any] = {
        "best": f"{best} at {clients} clients",
        "times": times,
        "absent": [*absent],
        "unlike": race.checker.mismatches,
        "on_time_open_loop": {name: round(race.on_time_share(name, OPEN_LOOP), 2) for name in there},
        "cpu_s_per_request": {name: round(median(race.cpu_s[name, max(CLOSED_LOOP_CLIENTS)]), 3) for name in there},
        "vllm": text_comparison.figures(),
    }
    what = (
        "a composite model, ragged requests, 1, 8, 16 and 64 clients: mstar serves as many a second as the best other "
        "server at each of them"
    )
    return Claim(what, value, 1.0, is_met=value >= 1 and not race.checker.mismatches, details=more)
