"""Section `decoders`: small random decoders of several families write the same tokens on the device and on the CPU.

On the device their steps are captured as graphs and run ahead; requests are greedy and sampled, and join in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling
from mstar.walk.states import KV

REQUESTS, TOKENS = 8, 24
VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}


def networks() -> Mapping[str, Callable[[], Any]]:
    """Decoders by family, with head sizes that the attention kernels of GPUs support."""
    import transformers

    t: Any = transformers
    return {
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES)),
        "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES, head_dim=16)),
        "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16)),
        "gemma3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**SIZES, **WINDOWS, head_dim=16)),
        "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**SIZES, sliding_window=8)),
        "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**(SIZES | {"num_key_value_heads": 4}))),
    }


def random_network(build: Callable[[], Any]) -> Any:
    """The same network for each call, with weights that make its tokens depend on its inputs."""
    import torch

    torch.manual_seed(0)
    network = build().eval()
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data.mul_(4)
    return network


def rows(options: SectionOptions) -> Iterator[Row]:
    """Compare each family."""
    from mstar.nn.devices import open_device

    device = open_device(options.device)
    for family, build in networks().items():
        try:
            expected, _ = _write(build, None)
            written, description = _write(build, device)
        except Exception as error:  # noqa: BLE001 - the other families are tried too
            yield Row(what=family, state="failed", note=f"{type(error).__name__}: {error}")
            continue
        equal = sum(
            a == b for mine, theirs in zip(written, expected, strict=True) for a, b in zip(mine, theirs, strict=True)
        )
        share = equal / (REQUESTS * TOKENS)
        state = "ok" if share == 1 else "failed"
        yield Row(what=family, state=state, value=share, unit="of the tokens are equal", note=description)


def _write(build: Callable[[], Any], device: Any) -> tuple[list[list[int]], str]:
    """Tokens of each request, and how they were computed."""
    import torch

    lm = CausalLM(lambda: random_network(build), eos_token_id=2, pages=256)
    lm.name, lm.device = "lm", device
    engine, op = Engine(), lm.ops()["next_token"]
    drawn = {"temperature": 1.0, "top_k": 20, "top_p": 0.9}
    sampling = [Sampling(max_tokens=TOKENS, seed=row, **(drawn if row % 2 else {})) for row in range(REQUESTS)]
    caches = [engine.new_state(lm, KV) for _ in range(REQUESTS)]
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randint(3, VOCABULARY, (3 + 5 * row,), generator=generator) for row in range(REQUESTS)]
    written: list[list[int]] = [[] for _ in range(REQUESTS)]
    for turn in range(REQUESTS + TOKENS):
        running = [row for row in range(REQUESTS) if row <= turn and len(written[row]) < TOKENS]
        jobs = [Job({"tokens": inputs[row], "kv": caches[row], "sampling": sampling[row]}) for row in running]
        for row, result in zip(running, engine.run(lm, op, jobs), strict=True):
            if not isinstance(result, JobDone):
                raise RuntimeError(f"request {row}: {result}")
            (inputs[row],) = result.values
            written[row].append(int(inputs[row]))
    steps = lm.decoder.steps
    graphs = "steps are not captured" if steps is None else f"{len(steps.graphs.graphs)} captured graphs"
    return written, f"{graphs}; {lm.decoder.attention_description}".rstrip("; ")
