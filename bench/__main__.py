"""`python -m bench NAME`: measure one claim; `all`: each of them; nothing: list them."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench import bookkeeping, engine, first_minute, int8, mutants, race, runtime, simulator
from bench.claims import Claim
from bench.web import idle, overload, share

BENCHES: dict[str, Callable[[], Claim]] = {
    "loop-step": bookkeeping.loop_step,
    "request-start": bookkeeping.request_start,
    "engine": engine.engine,
    "engine-peers": race.race,
    "int8-step": int8.step,
    "runtime": runtime.runtime,
    "http": share.share,
    "idle-streams": idle.idle_streams,
    "overload": overload.overload,
    "first-minute": first_minute.first_minute,
    "mutants": mutants.kill_rate,
    "sim": simulator.simulator,
}


def main(names: list[str]) -> int:
    """Run the benches named; 0 if every claim holds."""
    if not names or any(name not in (*BENCHES, "all") for name in names):
        print("python -m bench NAME, with NAME one of:", ", ".join((*BENCHES, "all")))
        return 2
    chosen = list(BENCHES) if "all" in names else names
    is_all_true = True
    for name in chosen:
        claim = BENCHES[name]()
        print(claim)
        is_all_true &= claim.holds
    return 0 if is_all_true else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
