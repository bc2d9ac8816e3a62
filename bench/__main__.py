"""`python -m bench NAME`: measure one claim; several names or `all`: each in a process of its own; `page`: write
docs/performance.md again; nothing: list them.

Every run is recorded (bench/records.py) and the page follows it. What is measured, and how, is in the modules that the
registry names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from bench import page
from bench.claims import Bench, printed_rows
from bench.records import ROOT, Record, add_record, machine, records

BENCHES: dict[str, Bench] = {
    "first-minute": Bench(
        "how long is the first minute?",
        "bench.first_minute:first_minute",
        "seconds from an empty environment to the first sound of a spoken answer, by phase; how much of it another "
        "recogniser mishears",
    ),
    "loop-step": Bench(
        "what does a loop step cost in Python?",
        "bench.step_overhead:loop_step",
        "µs per step of a speech request in a batch of 128",
    ),
    "request-start": Bench(
        "what does starting a request cost?",
        "bench.step_overhead:request_start",
        "µs on a walk of ten nodes",
    ),
    "engine": Bench(
        "how close is the engine to the bare loop?",
        "bench.engine:engine",
        "share of the bare loop at 1, 8, 16, 32 requests; against `generate`; prompts",
    ),
    "engine-peers": Bench(
        "and to other engines?", "bench.engine_comparison:compare_engines", "tokens a second, in turns"
    ),
    "peers": Bench(
        "and to other model servers?",
        "bench.peers.headline:peers",
        "requests a second of a composite model behind six other servers, ragged, and SmolLM2 behind vLLM's server",
    ),
    "int8-step": Bench("what does 8-bit cost and give?", "bench.int8:step", "times of a step"),
    "runtime": Bench(
        "what do conductor and worker processes take?",
        "bench.runtime:runtime",
        "share of the engine alone, µs of hops",
    ),
    "http": Bench(
        "what does HTTP take?",
        "bench.http.overhead:http_overhead",
        "SmolLM2 over HTTP at 16 streams against the engine alone; ms from a worker's emission to the client",
    ),
    "idle-streams": Bench(
        "how many idle streams does one front end hold?",
        "bench.http.idle_streams:idle_streams",
        "kB each at 10,000, and how late others get theirs",
    ),
    "overload": Bench(
        "what happens at two, three and five times the load?",
        "bench.http.overload:overload",
        "share of the capacity that is still served, ms to refuse the rest",
    ),
    "deadlines": Bench(
        "do streams stutter under load?",
        "bench.deadlines.speech:deadlines",
        "chunks of speech on time at 0.85 of the capacity, by our rule, VoxServe's and first come, first served",
    ),
    "load-curve": Bench(
        "and at which load do they begin to?",
        "bench.deadlines.speech:load_curve",
        "the share of chunks on time by load and rule, the load that each sustains, and how soon the first sound comes",
    ),
    "mixed": Bench(
        "do promises hold when everything comes at once?",
        "bench.deadlines.mixed:mixed",
        "speech, chat, pictures and a robot at 5 Hz on one engine: who was late, and what work that cost against "
        "a rule without clocks",
    ),
    "capacity-sim": Bench(
        "does a rehearsal tell what really happens?",
        "bench.deadlines.capacity_sim:capacity_sim",
        "three rules at two loads, real and rehearsed, and by how much the figures differ",
    ),
    "slo-admission": Bench(
        "are promises kept when more is wanted than can be served?",
        "bench.deadlines.slo_admission:slo_admission",
        "speech at two, three and five times the capacity: what those got who were let in, refusals, forecasts",
    ),
    "cluster": Bench(
        "what do clients notice of a host that is lost?",
        "bench.cluster.headline:cluster",
        "32 streams over three hosts, one cut off, one killed: the longest silence, how soon who is cut off stops",
    ),
    "multi-host": Bench(
        "and what do several hosts cost?",
        "bench.cluster.overhead:overhead",
        "tokens a second of three workers on three hosts and on one, the cache moving between them",
    ),
    "transfer": Bench(
        "what does a value cost on its way?",
        "bench.transfer:measure_transfer",
        "ms and MB/s in a process, through shared memory, and by Mooncake or TCP to another host; share of a bare read",
    ),
    "speech-omni": Bench(
        "are speech families faster than their references?",
        "bench.speech.headline:speech_omni",
        "Orpheus with 16 streams, Qwen3-Omni with 8 answers: times the reference, real-time factor, first sound",
    ),
    "longform": Bench(
        "and long recordings?",
        "bench.speech.longform:longform",
        "ten minutes against one pass of transformers, and in how many words both differ",
    ),
    "image-robot-world": Bench(
        "pictures, robots, worlds?",
        "bench.multimodal.headline:image_robot_world",
        "pi0.5, V-JEPA 2-AC and BAGEL: times the published code",
    ),
    "bagel": Bench("BAGEL by itself?", "bench.multimodal.headline:bagel_claim", "the same with more repeats"),
    "pi05": Bench("pi0.5 by itself?", "bench.multimodal.headline:pi05_claim", "the same by itself"),
    "vjepa2-ac": Bench(
        "V-JEPA 2-AC by itself?",
        "bench.multimodal.headline:world_claim",
        "the same, and the gain by horizon and dtype",
    ),
    "hopper": Bench(
        "does a robot get its actions in time?",
        "bench.multimodal.headline:hopper_claim",
        "replies to a simulated robot at 50 Hz over WebSocket, how many were late, and how far it hopped",
    ),
    "smolvlm": Bench(
        "questions on one picture?",
        "bench.multimodal.headline:smolvlm_claim",
        "eight questions against the reference one by one and in its own batch",
    ),
    "diffusion": Bench(
        "requests that join in the middle of diffusion?",
        "bench.multimodal.headline:diffusion_claim",
        "share of a bare loop over all as one batch; times diffusers",
    ),
    "scaling": Bench(
        "do replicas follow the load?",
        "bench.scaling:scaling",
        "workers and late chunks over time while four times as many streams come for 16 s",
    ),
    "studio": Bench(
        "what does the studio cost?",
        "bench.studio:studio",
        "kB of its page, seconds until it is seen, frames a second with 200 live requests, throughput with a viewer",
    ),
    "mutants": Bench("do the tests notice bugs?", "bench.mutants:mutation_score", "planted bugs that were caught"),
    "sim": Bench(
        "do the rules hold when everything breaks?",
        "bench.simulator:fault_simulation",
        "simulated runs, and those that broke a rule",
    ),
}
TIMEOUT_S = 1800.0
"""How long one bench among several may take."""


def main(names: list[str]) -> int:
    """Run the benches named; 0 if every claim holds."""
    if names == ["page"]:
        page.write(BENCHES)
        return 0
    chosen = list(BENCHES) if names == ["all"] else names
    if not chosen or not BENCHES.keys() >= set(chosen):
        print("python -m bench NAME..., with NAME one of:", ", ".join(BENCHES), "or all, or page")
        return 2
    return measure(*chosen) if len(chosen) == 1 else measure_in_subprocesses(chosen)


def measure(name: str) -> int:
    """Run one bench here, keep what it gave, and end with its claim in a line of JSON."""
    printed_rows.clear()
    here, begun = machine(), time.monotonic()
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    claim = BENCHES[name].load()()
    try:
        add_record(name, Record(date, time.monotonic() - begun, here, claim, printed_rows))
        page.write(BENCHES)
    except OSError as error:  # what was measured is told all the same
        print(f"not recorded: {error}\n  fix: run it in a checkout that may be written", file=sys.stderr)
    print(claim)
    return 0 if claim.is_met else 1


def measure_in_subprocesses(names: Sequence[str]) -> int:
    """Run benches one after another, each in a process of its own: whatever happens to one, the others run."""
    ends: dict[str, str] = {}
    for at, name in enumerate(names):
        kept, left = records(name), [last.took_s for other in names[at:] for last in records(other)[-1:]]
        last = f"took {kept[-1].took_s:.0f} s last time" if kept else "no earlier run"
        unknown = len(names) - at - len(left)
        print(
            f"[{at + 1}/{len(names)}] {name}: {last}; from here to the end about {sum(left) / 60:.1f} min"
            + f" and {unknown} that nobody timed" * bool(unknown),
            flush=True,
        )
        went_wrong = run_in_subprocess(name)
        newest = records(name)[-1:]
        is_recorded = newest != kept[-1:]
        ends[name] = ("holds" if newest[0].claim.is_met else "DOES NOT HOLD") if is_recorded else went_wrong
    print("\n".join(f"{name:20} {end}" for name, end in ends.items()))
    return 0 if set(ends.values()) == {"holds"} else 1


def run_in_subprocess(name: str) -> str:
    """Run one bench in a process of its own; how that process ended."""
    child = subprocess.Popen([sys.executable, "-m", "bench", name], cwd=ROOT, start_new_session=True)
    try:
        return f"ENDED WITHOUT A CLAIM, exit code {child.wait(TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        return f"STOPPED after {TIMEOUT_S:.0f} s"
    finally:
        if child.poll() is None:  # and the servers it started
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
