"""SmolLM2 behind mstar and behind vLLM's own server: the same weights in bfloat16, the same chats, in turns.

Both compute on one thread. Answers are streamed, greedy and ragged: each chat has its own bound. What the two write is
not compared: in bfloat16 a token may be chosen otherwise where two are nearly as likely. Engines without servers are
compared by `engine-peers`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from bench.claims import Row, paired_ratio, print_table
from bench.http.client import percentile
from bench.http.overhead import QUESTIONS
from bench.peers.clients import LoadResult, closed_loop, open_loop, post
from bench.peers.peer_servers import ONE_THREAD, Peer, ServerStartError, mstar_peer, run_server
from bench.peers.venvs import find_prepared
from bench.peers.vllm_peer import environment
from bench.peers.vllm_venv import VENV, WANTED

OURS, THEIRS = "mstar", "vLLM"
PATH = "/v1/chat/completions"
COUNT, BOUNDS, CLIENTS, RATE = 32, (16, 96), 16, 3.0
"""Number of chats, tokens per chat, and arrivals per second of the open loop."""
LOAD_S = 300.0
WORD = re.compile(rb'"content": ?"[^"]')
COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""How the model was taught to read a conversation."""


def chats(count: int, seed: int = 0) -> list[bytes]:
    """Requests, as both servers take them."""
    chosen = random.Random(seed)
    system = {"role": "system", "content": "You are a helpful assistant."}
    return [
        json.dumps(
            {
                "model": "model",
                "messages": [system, {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
                "max_tokens": chosen.randint(*BOUNDS),
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        for number in range(count)
    ]


def write_folder(folder: Path) -> None:
    """The weights and words that mstar reads, as vLLM reads them."""
    from transformers import PreTrainedTokenizerFast

    from mstar.nn.weights.gguf import GgufFile
    from mstar.nn.weights.sources import SMOLLM2_135M

    file = GgufFile(SMOLLM2_135M.path())
    file.network("bfloat16").save_pretrained(folder)
    words = {"tokenizer_object": file.tokenizer(), "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    PreTrainedTokenizerFast(**words).save_pretrained(folder)


@contextmanager
def vllm(folder: Path, python: Path) -> Generator[int]:
    """The port of vLLM's own server. Its memory and bounds are those of `engine-peers`."""
    flags = {
        "--model": str(folder),
        "--served-model-name": "model",
        "--host": "127.0.0.1",
        "--port": "{port}",
        "--dtype": "bfloat16",
        "--max-model-len": "512",
        "--max-num-seqs": "32",
        "--kv-cache-memory-bytes": str(1 << 28),
    }
    module = ("-m", "vllm.entrypoints.openai.api_server")
    peer = Peer(
        THEIRS, "vllm", WANTED, (*module, *chain(*flags.items()), "--no-enable-prefix-caching"), PATH, start_s=LOAD_S
    )
    own = {name: value for name, value in environment(VENV).items() if name != "KMP_AFFINITY"}  # one thread needs none
    with run_server(peer, python, chats(1)[0], own | ONE_THREAD) as running:
        yield running.port


def figures() -> dict[str, Any] | str:
    """Both in turns: prints a table, and gives how many times vLLM's figures ours are, or why it is not there."""
    if (python := find_prepared(VENV, WANTED)) is None:
        return "not installed: python -m bench.peers.install vllm"
    mstar = mstar_peer(OURS, "text_model", PATH, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        try:
            with vllm(Path(folder), python) as theirs, run_server(mstar, Path(sys.executable), chats(1)[0]) as ours:
                turns = _compare({OURS: ours.port, THEIRS: theirs})
        except ServerStartError as error:
            return str(error)
    return _summary(turns)


def _compare(ports: dict[str, int]) -> dict[tuple[str, str], list[LoadResult[bytes]]]:
    asks, turns = chats(COUNT), defaultdict[tuple[str, str], list[LoadResult[bytes]]](list)
    loads = {
        f"{CLIENTS} at once": partial(closed_loop, asks=asks, clients=CLIENTS),
        f"open loop, {RATE:g} requests/s": partial(open_loop, asks=asks, rate=RATE, seed=0),
    }
    for port in ports.values():  # not counted: warms
        asyncio.run(closed_loop(partial(post, port, PATH), asks=asks, clients=CLIENTS))
    for load, asking in loads.items():
        for name in random.sample([*ports], len(ports)):
            turns[name, load].append(asyncio.run(asking(partial(post, ports[name], PATH))))
    return turns


def _summary(turns: dict[tuple[str, str], list[LoadResult[bytes]]]) -> dict[str, Any]:
    """The table; how many times as many tokens a second as vLLM we write, and as soon the first word is there."""
    table = {key: _rows(f"{key[1]}, {key[0]}", done) for key, done in turns.items()}
    loads = [*dict.fromkeys(load for _, load in turns)]
    print_table([row for load in loads for name in (OURS, THEIRS) for row in table[name, load]])
    times: dict[str, Any] = {}
    for load in loads:
        (ours, our_first, _), (theirs, their_first, _) = table[OURS, load], table[THEIRS, load]
        pairs = {"tokens": (ours, theirs), "first word": (their_first, our_first)}
        times[load] = {name: round(paired_ratio(one.values, other.values), 2) for name, (one, other) in pairs.items()}
    return times


def _rows(name: str, turns: list[LoadResult[bytes]]) -> list[Row]:
    firsts = [[answer.first(WORD) for _, answer in turn.responses] for turn in turns]
    return [
        Row(name, "tokens/s", [_tokens(turn) / turn.seconds for turn in turns]),
        Row("  first word, p50", "s", [median(one) for one in firsts]),
        Row("  first word, p99", "s", [percentile(one, 0.99) for one in firsts]),
    ]


def _tokens(turn: LoadResult[bytes]) -> int:
    return sum(int(COMPLETION_TOKENS.findall(answer.content)[-1]) for _, answer in turn.responses)
