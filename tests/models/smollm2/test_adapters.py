"""SmolLM2 with its published weights and eight adapters in one batch writes what transformers writes after merging."""

import copy

import pytest
import torch

from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.nn.weights.gguf import GgufFile
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, Message, Sampling
from mstar.testing.local_runtime import LocalRuntime
from tests.models.transcripts import one_thread
from tests.nn.lm.adapters.peft_folders import merged, write_adapter

QUESTION = "What is the capital of France?"
MAX_TOKENS = 8


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_eight_adapters_in_one_batch_answer_as_merged_weights_one_by_one(tmp_path):
    network = GgufFile(SMOLLM2_135M.path()).network()
    adapters = [
        *(write_adapter(tmp_path / f"one-{seed}", network, seed, rank=8, size=2.0) for seed in range(4)),
        *(
            write_adapter(tmp_path / f"qv-{seed}", network, seed, targets=["q_proj", "v_proj"], size=4.0)
            for seed in range(4)
        ),
    ]
    with one_thread():
        model = SmolLm2()
        chats = [
            ChatRequest((Message("user", (QUESTION,)),), Sampling(max_tokens=MAX_TOKENS, adapter=adapter))
            for adapter in (*adapters, None)
        ]
        runtime = LocalRuntime(model, seed=1)
        written = [[int(one.value) for one in outcome.emissions] for outcome in runtime.run_all(chats)]
        assert max(count for _, count in runtime.batches) >= len(adapters)
        prompt, _ = model.lm.prompt(chats[0])
        for tokens, chat in zip(written, chats, strict=True):
            adapter = chat.sampling.adapter
            library = copy.copy(network) if adapter is None else merged(network, adapter)
            with torch.inference_mode():
                made = library.generate(prompt[None], max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=2)
            expected = made[0, len(prompt) :].tolist()
            end = expected.index(2) if 2 in expected else MAX_TOKENS
            assert tokens == expected[:end], adapter
    assert len({*map(tuple, written)}) > len(written) // 2, "most adapters change the answer"
