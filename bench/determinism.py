"""`python -m bench.determinism --requests 1000`: seeded requests to the shipped models, alone and in random crowds.

Each request is served alone and together with others: batches, joins, chunks of prompts and placements are drawn from a
seed. Answers are compared bit for bit; models that tell that they are nondeterministic too. The exit code is 1 if an
answer differs. It is no claim of speed. `--models` limits it to some models, whose names it prints.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.models.crowds import compare
from tests.models.shipped_models import SHIPPED_MODELS


def main() -> int:
    """Compare, and print a line for each model."""
    parser = argparse.ArgumentParser(prog="python -m bench.determinism")
    parser.add_argument("--requests", type=int, default=1000, help="number of requests, divided among the models")
    parser.add_argument("--models", nargs="*", default=list(SHIPPED_MODELS), help="names of models (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    total, equal = 0, 0
    for number, name in enumerate(given.models):
        count = given.requests // len(given.models) + (number < given.requests % len(given.models))
        started, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            results = list(compare(SHIPPED_MODELS[name], Path(folder), count, given.seed))
        different = [result for result in results if result is not None]
        took = f"{time.perf_counter() - started:.1f} s, {time.process_time() - cpu:.1f} s of CPU"
        example = f"; for example {different[0][:150]}" if different else ""
        print(f"{name:28} {len(results) - len(different)} of {len(results)} equal ({took}){example}", flush=True)
        total, equal = total + len(results), equal + len(results) - len(different)
    print(f"{equal} of {total} answers are equal bit for bit, alone and in a crowd")
    return 0 if equal == total else 1


if __name__ == "__main__":
    sys.exit(main())
