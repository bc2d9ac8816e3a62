"""Runs inside OpenVINO's own venv: converts a transformers model, then answers commands as `EngineProcess` describes.

It uses the continuous batching of OpenVINO GenAI, and imports nothing of this repository.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1


def load(model: str, threads: int, max_sequences: int, cache_gb: int) -> Any:
    """The model as OpenVINO runs it, with weights of the same precision."""
    import openvino_genai as genai
    from optimum.intel import OVModelForCausalLM

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = max_sequences
    scheduler.cache_size = cache_gb
    scheduler.enable_prefix_caching = False
    with tempfile.TemporaryDirectory() as folder:
        OVModelForCausalLM.from_pretrained(model, export=True, compile=False, load_in_8bit=False).save_pretrained(
            folder
        )
        return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


def serve(pipeline: Any, commands: TextIO, answers: TextIO) -> None:
    """Answer every command; greedy, and never ended by a token."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in commands:
        command = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample, config.eos_token_id = (
            command["new"],
            True,
            False,
            -1,
        )
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in command["prompts"]]
        begun = time.perf_counter()
        made = pipeline.generate(prompts, [config] * len(prompts))
        seconds = time.perf_counter() - begun
        outputs = [list(result.m_generation_ids[0]) for result in made]
        print(json.dumps({"seconds": seconds, "outputs": outputs}), file=answers, flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while it loads it would not see that its input ended
    own_stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(load(**json.loads(sys.argv[1])), sys.stdin, own_stdout)
