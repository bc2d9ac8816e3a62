"""Runs inside vLLM's own venv: loads one model, then answers commands, one JSON line for each, until its input ends.

The first line it writes says that it is ready. After that: {"prompts": [[ids]], "new": n} is answered by
{"seconds": s, "outputs": [[ids]]}. It knows nothing of mstar, and imports nothing of this repository.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1


def serve(llm: Any, commands: TextIO, answers: TextIO) -> None:
    """Answer every command; greedy, and never ended by a token."""
    from vllm import SamplingParams

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in commands:
        command = json.loads(line)
        count = command["new"]
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in command["prompts"]]
        begun = time.perf_counter()
        made = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        outputs = [list(request.outputs[0].token_ids) for request in made]
        print(json.dumps({"seconds": seconds, "outputs": outputs}), file=answers, flush=True)


def main(settings: str) -> None:
    """Load the model that the settings name, and serve it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while it loads it would not see that its input ended
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout, which is ours alone
    from vllm import LLM

    serve(LLM(**json.loads(settings)), sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1])
