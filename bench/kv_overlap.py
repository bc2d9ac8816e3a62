"""How much of the transfer of a KV cache happens while its prompt is still read: prefill and decode on two workers.

Real processes: launcher, conductor, one worker that reads prompts and one that writes. After a prompt the first walk
emits its token, and the second walk can only emit once it has the cache: the time between these two outputs is what a
client waits for the move. Three deployments take turns: parts of the cache are sent after each chunk of the prompt; the
cache is sent whole after the prompt; one worker does both, and nothing moves. The last one is the cost of starting a
walk, which is subtracted from the others.

Workload: the published SmolLM2-135M at full size in bf16 with random weights, prompts of 2,000 tokens (46 MB of keys
and values) in chunks of 512 tokens, the default. One request at a time.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.claims import Claim, Row, print_table
from bench.http.client import model_file
from bench.peers.model import make_prompts

TOKENS, ROUNDS = 2_000, 2
MIN_OVERLAP = 0.7
TIMEOUT_S = 120.0
SPLIT = '[walks.read]\nlm = "reads"\n[walks.write]\nlm = "writes"'
AHEAD, WHOLE, ONE = "sent while the prompt is read", "sent after the prompt", "one worker, nothing is sent"
DEPLOYMENTS = {AHEAD: ("SplitLm", SPLIT), WHOLE: ("WholeLm", SPLIT), ONE: ("SplitLm", None)}


def kv_overlap() -> Claim:
    """Measure the share of the transfer that a client does not wait for."""
    waits: dict[str, list[float]] = {name: [] for name in DEPLOYMENTS}
    reads: dict[str, list[float]] = {name: [] for name in DEPLOYMENTS}
    prompts = iter(make_prompts(len(DEPLOYMENTS) * (ROUNDS + 1), TOKENS, seed=1))
    with ExitStack() as stack:
        clients = {name: stack.enter_context(deploy(*each)) for name, each in DEPLOYMENTS.items()}
        for round_ in range(ROUNDS + 1):
            for name, client in clients.items():
                read_s, wait_s = client.ask(next(prompts))
                if round_:  # not the first one, which maps memory
                    reads[name].append(1000 * read_s)
                    waits[name].append(1000 * wait_s)
    print_table([Row(f"from the prompt to the next walk, {name}", "ms", waits[name]) for name in DEPLOYMENTS])
    print_table([Row(f"reading the prompt, {name}", "ms", reads[name]) for name in DEPLOYMENTS])
    ahead, whole, one = (statistics.median(waits[name]) for name in DEPLOYMENTS)
    overlap = 1 - (ahead - one) / (whole - one)
    return Claim(
        f"share of the transfer of a KV cache of {TOKENS} tokens that happens while its prompt is read",
        round(overlap, 3),
        MIN_OVERLAP,
        is_met=overlap >= MIN_OVERLAP,
        details={"transfer_ms": round(whole - one, 1), "waited_for_ms": round(ahead - one, 1)},
    )


class _Client:
    """A client of one deployment."""

    def __init__(self, front_end: Any) -> None:
        self._front_end = front_end

    def ask(self, prompt: list[int]) -> tuple[float, float]:
        """Seconds until the output at the end of the prompt, and from there to the next output."""
        from mstar.frontend.core import Deliver
        from mstar.wire.messages import Submit, Value

        outputs: list[float] = []
        has_ended = threading.Event()

        def on_event(event: Any) -> None:
            if isinstance(event, Deliver):
                outputs.append(time.perf_counter())
            else:
                has_ended.set()

        started_at = time.perf_counter()
        submit = Submit(self._front_end.new_rid(), "lm", Value((prompt, 2)), timeout_s=TIMEOUT_S)
        self._front_end.submit(submit, on_event)
        if not has_ended.wait(TIMEOUT_S) or len(outputs) < 2:
            raise RuntimeError(f"{len(outputs)} outputs within {TIMEOUT_S:g} s")
        return outputs[0] - started_at, outputs[1] - outputs[0]


@contextmanager
def deploy(model: str, placement: str | None) -> Iterator[_Client]:
    """A deployment of a model of disaggregated_lm.py."""
    from mstar.config import RuntimeConfig
    from mstar.frontend.actor import FrontendActor
    from mstar.launch.local_launcher import LocalLauncher
    from mstar.wire.messages import Peer

    models = {"lm": f"{model_file('disaggregated_lm')}:{model}"}
    with LocalLauncher(models, {"lm": placement}, options=RuntimeConfig(threads=1), standby=False) as local:
        front_end = FrontendActor(local.actor_loop, Peer("front", 0), local.conductors)
        local.add_frontend(front_end)
        yield _Client(front_end)
