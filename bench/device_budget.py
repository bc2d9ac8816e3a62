"""What a decode step costs between host and device, counted on a pretend GPU: waits, copies, kernels.

The networks are small and random: the number of waits and copies does not depend on width, and the number of kernels
is proportional to the number of layers. The step is that of the engine: `next_token` and `is_end` of the op's batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from bench.claims import Claim, Row, print_table

MAX_SYNCS, MAX_COPIES = 2, 3
ROWS = (1, 8, 32)
STEPS = 4
SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 8}


def device_budget() -> Claim:
    """Count the traffic of the last of several decode steps, for each network, kind of sampling and batch size."""
    counted: dict[str, list[int]] = {}
    lines = defaultdict[str, Counter[str]](Counter)
    for network, load in networks().items():
        lm = component(load)
        for kind, sampling in kinds().items():
            for rows in ROWS:
                traffic = step_traffic(lm, [sampling(row) for row in range(rows)])
                counted[f"{network}, {kind}, {rows}"] = [
                    sum(counter.values()) for counter in (traffic.syncs, traffic.to_device, traffic.kernels)
                ]
                lines[network] |= traffic.syncs
    units = ("waits", "copies", "kernels")
    print_table(
        [
            Row(name, unit, [value])
            for name, values in counted.items()
            for unit, value in zip(units, values, strict=True)
        ]
    )
    for network, syncs in lines.items():
        print(f"{network} waits at: {', '.join(f'{line} ({count})' for line, count in syncs.items())}")
    syncs = max(values[0] for values in counted.values())
    copies = max(values[1] for values in counted.values())
    return Claim(
        "waits of the host for the device per decode step, on a pretend GPU, for any number of greedy or sampled rows",
        syncs,
        MAX_SYNCS,
        is_met=syncs <= MAX_SYNCS and copies <= MAX_COPIES,
        details={"copies to the device": copies, "target of copies": MAX_COPIES},
    )


def networks() -> dict[str, Callable[[], Any]]:
    """Functions that make the networks."""
    import transformers as t

    return {
        "Llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)),
        "Qwen3-MoE": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**SIZES, **EXPERTS)),
    }


def kinds() -> dict[str, Callable[[int], Any]]:
    """Sampling parameters of a row, by kind."""
    from mstar.requests import Sampling

    return {
        "greedy": lambda row: Sampling(),  # noqa: ARG005 - all rows are equal
        "sampled": lambda row: Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, seed=row),
        "penalties": lambda row: Sampling(
            temperature=1.0, repetition_penalty=1.1, presence_penalty=0.2, logit_bias=((5, 1.0),), seed=row
        ),
    }


def component(load: Callable[[], Any]) -> Any:
    """A language model on the pretend GPU."""
    import torch

    from mstar.nn.lm.causal_lm import CausalLM
    from mstar.nn.pretend_gpu import pretend_gpu

    torch.manual_seed(0)
    lm = CausalLM(lambda: load().eval().to(pretend_gpu()), eos_token_id=2)
    lm.name = "lm"
    lm.prepare()
    return lm


def step_traffic(lm: Any, sampling: list[Any]) -> Any:
    """The traffic of the last step of requests with these parameters."""
    import torch

    from mstar.nn.pretend_gpu import count_traffic
    from mstar.walk.states import KV

    def run(op: str, **columns: list[Any]) -> list[Any]:
        results = lm.ops()[op].run(lm, columns | {"sampling": sampling}, len(sampling))
        return [first for first, *_ in results]

    caches = [lm.make_state(KV) for _ in sampling]
    tokens = [torch.arange(3, 8 + row) for row in range(len(sampling))]
    for _ in range(STEPS):
        with count_traffic() as traffic:
            tokens = run("next_token", tokens=tokens, kv=caches)
            run("is_end", token=tokens)
    for cache in caches:
        cache.free()
    return traffic
