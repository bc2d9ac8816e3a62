"""`python -m bench peers`: mstar against other model servers and against vLLM's server, each as its authors advise."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.claims import Claim, paired_ratio
from bench.peers import text_comparison
from bench.peers.speech_comparison import CLOSED_LOOP_CLIENTS, OURS, Comparison, servers


def peers() -> Claim:
    """A composite model at 16 clients: requests a second of mstar for each of the best other server."""
    with servers() as (there, absent):
        for name, reason in absent.items():
            print(f"{name} is not in the race: {reason}")
        race = Comparison(there)
        race.warm_up()
        race.run()
    race.print_tables()
    most = max(CLOSED_LOOP_CLIENTS)
    rates = {name: race.rates(name, most) for name in there}
    times = {
        name: round(paired_ratio(rates[OURS], rates[name]), 2) for name in there if name != OURS and all(rates[name])
    }
    if not times:
        raise RuntimeError("no other server is installed\n  fix: python -m bench.peers.install")
    best = min(times, key=lambda name: times[name])
    more: dict[str, Any] = {"best": best, "times": times, "absent": [*absent], "unlike": race.checker.mismatches}
    more |= {
        "requests_per_s": {name: round(median(rates[name]), 2) for name in there},
        "vllm": text_comparison.figures(),
    }
    what = f"a composite model, ragged requests, {most} clients: mstar serves as many a second as the best other server"
    return Claim(what, times[best], 1.0, is_met=times[best] >= 1 and not race.checker.mismatches, details=more)
