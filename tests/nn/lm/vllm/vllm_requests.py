"""Requests in a language model that vLLM runs, compared with `generate` of transformers. Prints what was compared.

.venv-vllm/bin/python -m tests.nn.lm.vllm.vllm_requests
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
import transformers as t

from mstar.config import configure_vllm
from mstar.engine.jobs import Job, JobDone
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling
from mstar.walk.batching import Layout
from mstar.walk.states import KV
from tests.nn.lm.concurrent_requests import ConcurrentRequests, generate_tokens, prompts

ONE_TOKEN = Layout(1, (1,))
SIZES = {"vocab_size": 97, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "eos_token_id": 2}
SAMPLING = [
    Sampling(max_tokens=12),
    Sampling(max_tokens=12, temperature=0.8, seed=3, top_k=0, top_p=1.0),
    Sampling(max_tokens=12, temperature=1.2, seed=5, top_k=20, top_p=0.9),
    Sampling(max_tokens=12, repetition_penalty=1.3),
]


def network() -> Any:
    """A Llama with random weights whose outputs depend on the prompt."""
    torch.manual_seed(0)
    llama = t.LlamaForCausalLM(t.LlamaConfig(**SIZES, **HEADS)).eval()
    for weight in llama.parameters():
        if weight.ndim == 2:
            weight.data.mul_(4)
    return llama


class VllmRequests(ConcurrentRequests):
    """Requests in vLLM, which checks its own pages."""

    def check_memory(self) -> None:
        used, pages = self.lm.decoder.store.page_counts()
        assert 0 <= used <= pages


def compare(lm: CausalLM, library: Any, seed: int, **disturbances: Any) -> int:
    """Serve eight requests at random, and compare each token; return how many there were."""
    given = [(prompt, SAMPLING[at % len(SAMPLING)]) for at, prompt in enumerate(prompts(8, seed))]
    served = VllmRequests(lm, seed, token_budget=32).serve(given, **disturbances)
    expected = [generate_tokens(library, prompt, params) for prompt, params in given]
    assert served == expected, (served, expected)
    return sum(map(len, served))


def error_of(lm: CausalLM, job: Job) -> Exception | None:
    """The error of one call."""
    (result,) = VllmRequests(lm, 0).engine.run(lm, lm.ops()["next_token"], [job])
    return None if isinstance(result, JobDone) else result.error


def new_pages(lm: CausalLM, tenants: list[str]) -> list[int]:
    """Pages that an equal prompt of two full pages and a token takes for one tenant after another."""
    caches, taken = [], []
    for tenant in tenants:
        caches.append(lm.make_state(KV))
        caches[-1].tenant = tenant
        used = lm.decoder.store.page_counts()[0]
        lm.decoder.next_token(torch.arange(3, 68), [caches[-1]], [SAMPLING[0]], Layout(1, (65,)))
        taken.append(lm.decoder.store.page_counts()[0] - used)
    return taken


def main() -> None:
    """Run all comparisons in one engine: vLLM has one per process."""
    configure_vllm()
    library, lm = network(), CausalLM(network, eos_token_id=2, pages=24, page_size=32)
    lm.name = "lm"
    lm.operator_settings = {"engine": "vllm", "dtype": "float32", "vllm_args": "--enforce-eager --block-size 32"}
    lm.prepare()
    report: dict[str, Any] = {"pages": lm.decoder.store.page_counts()[1]}
    report["random schedule"] = compare(lm, library, 1)
    report["forks and evictions"] = compare(lm, library, 2, forks=3, evictions=0.2)
    gc.collect()
    # Sixteen requests of up to 82 tokens need more pages than there are: some are evicted.
    crowd = [(prompt, SAMPLING[0]) for prompt in [*prompts(8, 3), *(torch.arange(3, 73) for _ in range(12))]]
    served = VllmRequests(lm, 3).serve(crowd)
    assert served == [generate_tokens(library, prompt, params) for prompt, params in crowd]
    report["more requests than pages"] = sum(map(len, served))

    cache = lm.make_state(KV)
    step = lm.decoder.next_token
    step(torch.arange(3, 43), [cache], [SAMPLING[0]], Layout(1, (40,)))
    moved = lm.load_state(KV, cache.export())
    token = torch.tensor([5])
    assert step(token, [cache], [SAMPLING[0]], ONE_TOKEN)[0].tolist() == (
        step(token, [moved], [SAMPLING[0]], ONE_TOKEN)[0].tolist()
    )
    report["exported"] = True
    too_long = Job({"tokens": torch.arange(3, 90), "kv": lm.make_state(KV), "sampling": Sampling(max_tokens=400)})
    report["too long"] = type(error_of(lm, too_long)).__name__
    try:
        lm.decoder.hidden_states()
    except Exception as error:  # noqa: BLE001 - its type is reported
        report["hidden states"] = type(error).__name__
    report["new pages of an equal prompt"] = new_pages(lm, ["first", "other", "first"])
    del cache, moved, too_long
    gc.collect()
    compare(lm, library, 4)
    gc.collect()
    lm.decoder.next_token(torch.tensor([3]), [lm.make_state(KV)], [SAMPLING[0]], ONE_TOKEN)
    report["pages used at the end"] = lm.decoder.store.page_counts()[0]
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
