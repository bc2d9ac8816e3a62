"""Run on a host of a bench: `tests/cluster/driver_process.py`, with what benches ask beyond that."""

from __future__ import annotations

import random
import time

from mstar.config import RuntimeConfig
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.cluster.driver_process import DriverProcess, main
from tests.integration.deployment_clients import Oracle, add_frontend, module_of

MAX_PROMPT_TOKENS, VOCABULARY_SIZE = 200, 49_152
"""How long prompts are at most, and how many tokens there are."""


class BenchDriverProcess(DriverProcess):
    """What can be asked of a driver."""

    def ask_count(self, target: str, steps: int, notes: str) -> None:
        """Make up requests for the model that counts."""
        model = load_model(target)
        ask = module_of(model).CountRequest
        self.oracles["count"] = Oracle(model, [ask(key, steps, notes) for key in range(2)])

    def stock_of(self, worker: str) -> dict[str, int]:
        """What a worker holds."""
        assert self.cluster is not None, "it was started"
        assert self.front is not None, "so was this"
        peer = next(peer for peer in self.cluster.peers() if peer.name == worker)
        return self.front.query_counts(peer).result(5.0)

    def start_here(self, models: dict[str, str], placements: dict[str, str], threads: int) -> None:
        """Serve the same on this host alone, beside the cluster."""
        self.local = LocalLauncher(models, placements, options=RuntimeConfig(threads=threads))
        self.local.start()
        self.local_front = add_frontend(self.local, "front-here")

    def stop_here(self) -> None:
        """End what is served on this host alone."""
        self.local.stop(1.0)

    def write(self, where: str, count: int, new: int) -> float:
        """Tokens per second of concurrent requests, on "one" host or on "three"."""
        served = self.local_front if where == "one" else self.front
        assert served is not None, "it was started"
        chosen = random.Random(0)
        prompts = [
            [chosen.randrange(VOCABULARY_SIZE) for _ in range(chosen.randint(20, MAX_PROMPT_TOKENS))]
            for _ in range(count)
        ]
        began = time.perf_counter()
        streams = [served.open_stream("lm", (prompt, new)) for prompt in prompts]
        written = sum(sum(1 for _ in stream) for stream in streams)
        assert written == count * new, f"{written} tokens of {count * new}"
        return written / (time.perf_counter() - began)


if __name__ == "__main__":
    main(BenchDriverProcess())
