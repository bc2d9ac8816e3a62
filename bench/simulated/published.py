"""Decode steps by the roofline of `mstar profile --estimate`, against results that others have published.

The shares of bandwidth and rate in `plan.roofline` were chosen after these figures were known, so this is not an
independent test. The step of a batch of 16 is missed: its source serves prompts between the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from mstar.cli.capacity.estimate import published_decoder
from mstar.plan.roofline import DecoderSize, find_data_sheet

MISTRAL_7B = DecoderSize(7_248_023_552, 32 * 8 * 128 * 2)
"""Parameters, and layers x key-value heads x head size x 2, of the published config.json of Mistral-7B-v0.3."""


@dataclass(frozen=True)
class PublishedResult:
    """A published figure of another system: seconds of one decode step."""

    what: str
    source: str
    device: str
    size: DecoderSize
    rows: int
    depth: int
    """Mean length of the KV caches, in positions."""
    step_s: float

    @property
    def estimate_s(self) -> float:
        """Seconds by the roofline."""
        return self.size.forward_s(find_data_sheet(self.device), self.rows, 1, self.depth)

    @property
    def error(self) -> float:
        """Error of the estimate, relative to the published figure."""
        return self.estimate_s / self.step_s - 1


def published_results() -> list[PublishedResult]:
    """All figures, with their sources."""
    llama = published_decoder("llama-3.1-8b")
    sweep = "https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/ (vLLM 0.21, TPOT p50)"
    return [
        PublishedResult(
            "Llama-3.1-8B on A100-40GB, 1 request: 75 tokens/s",
            "https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on (vLLM 0.23)",
            "A100-40GB",
            llama,
            1,
            1024 + 64,
            1 / 75,
        ),
        PublishedResult("Llama-3.1-8B on H100, 1 request: 6.48 ms", sweep, "H100-80GB", llama, 1, 256, 0.00648),
        PublishedResult("Llama-3.1-8B on H100, 4 requests: 6.59 ms", sweep, "H100-80GB", llama, 4, 256, 0.00659),
        PublishedResult("Llama-3.1-8B on H100, 16 requests: 10.94 ms", sweep, "H100-80GB", llama, 16, 256, 0.01094),
        PublishedResult(
            "Mistral-7B-v0.3 on RTX 4090, 4 requests: 210 tokens/s, with the prompts",
            "https://mushfiqrahman.dev/?p=1668 (vLLM)",
            "RTX4090-24GB",
            MISTRAL_7B,
            4,
            256 + 64,
            4 / 210,
        ),
    ]
