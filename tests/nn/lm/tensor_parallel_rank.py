"""One rank of a group: serves a crowd with each family in turn, and prints what it wrote as JSON.

python -m tests.nn.lm.tensor_parallel_rank ADDRESS RANK RANKS FAMILY...
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch

from mstar.nn.ranks import Rank, join_group
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from tests.nn.lm.concurrent_requests import ConcurrentRequests, make_component, prompts

REQUESTS = 8
_DEADLINE_S = 60


def sampling_params(count: int) -> list[Sampling]:
    """Every other request greedy, the others each with a seed of its own."""
    drawn = {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}
    return [Sampling(max_tokens=8, seed=row, **(drawn if row % 2 else {})) for row in range(count)]


def serve(name: str, rank: Rank) -> dict[str, Any]:
    """The tokens of a crowd in little memory, and digests of the bits of some logits and hidden states."""
    lm = make_component(name, pages=40)
    lm.rank = rank
    given = prompts(REQUESTS)
    requests = list(zip(given, sampling_params(REQUESTS), strict=True))
    written = ConcurrentRequests(lm, 7, token_budget=30).serve(requests, forks=3, evictions=0.05)
    tokens, layout = torch.cat(given[:4]), Layout(4, tuple(len(one) for one in given[:4]))
    _, logits = lm.decoder.next_token(
        tokens, [lm.decoder.new_cache(None) for _ in range(4)], sampling_params(4), layout
    )
    hidden = lm.decoder.hidden_states(tokens, [lm.decoder.new_cache(None) for _ in range(4)], layout)
    bits = [hashlib.blake2b(one.numpy().tobytes()).hexdigest() for one in (logits, hidden)]
    return {"written": written, "bits": bits, "width": logits.shape[1]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    address, rank, ranks, *names = sys.argv[1:]
    with join_group(address, int(rank), int(ranks), timeout_s=_DEADLINE_S) as this:
        json.dump({name: serve(name, this) for name in names}, sys.stdout)
