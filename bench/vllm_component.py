"""`python -m bench.vllm_component`: SmolLM2 in a walk, run by mstar's own decoder and by vLLM, in turns.

Real processes; both engines in float32, the dtype of the weights, each in a worker of its own that waits while the
other one works. Needs `scripts/install-vllm`. It is no claim: it shows what `engine = "vllm"` costs or gains on a CPU.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

from bench.claims import Row, print_table
from bench.peers.vllm_venv import VENV
from mstar.frontend.core import Deliver
from mstar.requests import ChatRequest, Message, Sampling
from mstar.wire.messages import Peer, Submit, Value

PLACEMENTS = {
    "own decoder": "",
    "vLLM, eager": '[workers.local]\npython = "{python}"\n[components.lm]\nengine = "vllm"\n'
    'vllm_args = "--enforce-eager"',
}
CONCURRENCY = (1, 8, 16)
TOKENS = 48
ROUNDS = 3
TIMEOUT_S = 120.0


def main() -> None:
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher

    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        front_ends: dict[str, Any] = {}
        for name, placement in PLACEMENTS.items():
            text = placement.format(python=VENV / "bin/python")
            local = stack.enter_context(LocalLauncher({"model": "smollm2"}, {"model": text}, standby=False))
            front_ends[name] = FrontendActor(local.actor_loop, Peer("front", 0), local.conductors)
            local.add_frontend(front_ends[name])
            tokens_per_second(front_ends[name], 2)
        for _ in range(ROUNDS):
            for count in CONCURRENCY:
                for name, front_end in front_ends.items():
                    rates.setdefault(f"{name}, {count}", []).append(tokens_per_second(front_end, count))
    print_table([Row(name, "tokens/s", values) for name, values in rates.items()])
    for count in CONCURRENCY:
        own, vllm = (sorted(rates[f"{name}, {count}"])[ROUNDS // 2] for name in PLACEMENTS)
        print(f"{count} requests: vLLM writes {vllm / own:.2f} times the tokens of the own decoder")


def tokens_per_second(front_end: Any, count: int) -> float:
    """Rate at which this number of requests writes at the same time, their prompts included."""
    received, ended, lock = [0], threading.Semaphore(0), threading.Lock()

    def on_event(rid: str, seen: list[int], event: Any) -> None:
        if not isinstance(event, Deliver):
            ended.release()
            return
        seen[0] += 1
        front_end.report_consumed({(rid, event.kind): seen[0]})
        with lock:
            received[0] += 1

    begin = time.perf_counter()
    for row in range(count):
        question = f"Tell me a long story about the number {row}, with many details."
        request = ChatRequest((Message("user", (question,)),), Sampling(max_tokens=TOKENS))
        rid = front_end.new_rid()
        submit = Submit(rid, "model", Value(request), timeout_s=TIMEOUT_S)
        front_end.submit(submit, lambda event, rid=rid, seen=[0]: on_event(rid, seen, event))
    for _ in range(count):
        if not ended.acquire(timeout=TIMEOUT_S):
            raise RuntimeError(f"no end after {TIMEOUT_S:g} s")
    return received[0] / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
