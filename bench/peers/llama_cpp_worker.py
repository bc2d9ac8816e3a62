"""Runs inside llama.cpp's own venv: loads a GGUF file, then answers commands as `EngineProcess` describes.

All prompts are read in one batch, then each step decodes the next token of all sequences in one batch, as llama.cpp's
server does for requests that arrive together. It imports nothing of this repository.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, TextIO

import llama_cpp
import numpy as np

PR_SET_PDEATHSIG = 1


class BatchedModel:
    """A loaded model and the batch that is sent to it."""

    def __init__(self, path: str, threads: int, max_sequences: int, context: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}\n  fix: what it printed above")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max_sequences * context
        params.n_batch = params.n_ubatch = max_sequences * context
        params.n_seq_max = max_sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(max_sequences * context, 0, 1)

    def generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Greedy tokens of all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        outputs: list[list[int]] = [[] for _ in prompts]
        entries = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for _ in range(new):
            for output, token in zip(outputs, self._decode(entries), strict=True):
                output.append(token)
            entries = [
                (output[-1], len(prompt) + len(output) - 1, sequence, True)
                for sequence, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
            ]
        return outputs

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """The most likely next token at each position that asks for one."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for number, (token, position, sequence, is_wanted) in enumerate(entries):
            batch.token[number] = token
            batch.pos[number] = position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = sequence
            batch.logits[number] = is_wanted
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        wanted = [number for number, entry in enumerate(entries) if entry[3]]
        # Logits of all wanted positions are contiguous: one argmax for all of them is the cheapest way to sample.
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(len(wanted), self._vocabulary)).argmax(-1).tolist()


def serve(model: BatchedModel, commands: TextIO, answers: TextIO) -> None:
    """Answer every command."""
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in commands:
        command: dict[str, Any] = json.loads(line)
        begun = time.perf_counter()
        outputs = model.generate(command["prompts"], command["new"])
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "outputs": outputs}), file=answers, flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while it loads it would not see that its input ended
    own_stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(BatchedModel(**json.loads(sys.argv[1])), sys.stdin, own_stdout)
