"""`python -m bench.experts`: should tokens move to the process with their experts, or the weights of experts to them?

One expert of Qwen3-30B-A3B (width 2048, 768 inside, bf16: 9.4 MB), without its computation, which is the same both
ways. Moving tokens is a round trip of hidden states over the channel between a worker and the process with its experts;
moving weights is a copy through shared memory. Both processes are on one host.

The cost model of moving tokens is a latency and a bandwidth, from the smallest and the largest number of tokens; the
numbers between them test it. The break-even, as in Fiddler, is the number of tokens of one expert at which both ways
take the same time. It is no claim: between a host and a GPU it is another number.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

import torch

from bench.claims import Row, print_table
from mstar.worker.channel import Channel

TOKENS = (1, 32, 64, 128, 256, 512)
REPEATS = 15
WIDTH, INNER = 2048, 768
WEIGHTS_BYTES = 3 * WIDTH * INNER * 2


@dataclass(frozen=True)
class TransferCost:
    """Seconds of a round trip: a latency, and a time per token."""

    latency_s: float
    token_s: float

    @classmethod
    def fit(cls, seconds: dict[int, float]) -> TransferCost:
        """The line through the smallest and the largest number of tokens."""
        few, many = min(seconds), max(seconds)
        token_s = (seconds[many] - seconds[few]) / (many - few)
        return cls(seconds[few] - few * token_s, token_s)

    def predict(self, tokens: int) -> float:
        """Seconds for a number of tokens."""
        return self.latency_s + tokens * self.token_s

    def break_even(self, weights_s: float) -> float:
        """Number of tokens that move in the same time as the weights."""
        return (weights_s - self.latency_s) / self.token_s


def echo(descriptor: int) -> None:
    """The other process: receive the tokens of an expert, and send as many results."""
    torch.set_num_threads(1)
    channel = Channel.from_descriptor(descriptor)
    while True:
        try:
            channel.send(channel.receive()[1])
        except EOFError:
            return


def main() -> None:
    """Move both in turns."""
    torch.set_num_threads(1)
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", f"from bench.experts import echo; echo({theirs.fileno()})"]
    shared = torch.zeros(WEIGHTS_BYTES, dtype=torch.uint8).random_().share_memory_()
    target = torch.zeros(WEIGHTS_BYTES, dtype=torch.uint8)
    moved: dict[int, list[float]] = {tokens: [] for tokens in TOKENS}
    copied: list[float] = []
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),)):
        theirs.close()
        channel = Channel(ours)
        for repeat in range(-2, REPEATS):  # two rounds to warm up
            for tokens, times in moved.items():
                hidden, chosen = (
                    torch.zeros(tokens, WIDTH, dtype=torch.bfloat16),
                    torch.zeros(tokens, dtype=torch.int64),
                )
                started_at = time.perf_counter()
                channel.send((0, hidden, chosen, hidden[:, 0].contiguous()))
                channel.receive()
                if repeat >= 0:
                    times.append(time.perf_counter() - started_at)
            started_at = time.perf_counter()
            target.copy_(shared)
            if repeat >= 0:
                copied.append(time.perf_counter() - started_at)
        channel.close()
    report(moved, copied)


def report(moved: dict[int, list[float]], copied: list[float]) -> None:
    """Print the times, the error of the cost model, and the break-even."""
    rows = [Row(f"{tokens} tokens there and back", "ms", [1e3 * s for s in times]) for tokens, times in moved.items()]
    print_table([*rows, Row(f"weights of an expert, {WEIGHTS_BYTES / 1e6:.1f} MB", "ms", [1e3 * s for s in copied])])
    seconds = {tokens: median(times) for tokens, times in moved.items()}
    cost = TransferCost.fit(seconds)
    for tokens in sorted(seconds)[1:-1]:
        predicted = cost.predict(tokens)
        print(f"{tokens} tokens: predicted {1e3 * predicted:.2f} ms, {predicted / seconds[tokens] - 1:+.0%}")
    print(f"break-even: {cost.break_even(median(copied)):.0f} tokens of one expert")


if __name__ == "__main__":
    main()
