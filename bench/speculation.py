"""Speculative decoding by prompt lookup against the same decoder without it, on text that repeats its prompt.

SmolLM2-135M-Instruct with its published weights, in an engine as a worker runs it. Each request copies a record with
one change, as an edit of a document or of code does: 1 request alone, and 16 at once, where a forward has little time
left for drafts. The two decoders take turns, in both orders, and their answers are compared token by token.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.claims import Claim, Row, print_table

DRAFT_TOKENS = 8
NEW_TOKENS = 96
ROUNDS = {1: 7, 16: 3}
"""Repetitions by number of requests."""
MIN_SPEEDUP, MIN_SPEEDUP_IN_BATCH = 1.3, 1.0
CITIES = ("Oslo", "Lima", "Cairo", "Delhi", "Paris", "Quito", "Seoul", "Tunis")
PLAIN, DRAFTED = "one token per forward", "with drafts"


def speculation() -> Claim:
    """Measure tokens per second with and without drafts."""
    decoders = {PLAIN: Decoding(None), DRAFTED: Decoding(DRAFT_TOKENS)}
    ratios, equal, total = dict[int, float](), 0, 0
    for count, rounds in ROUNDS.items():
        speeds: dict[str, list[float]] = {name: [] for name in decoders}
        for round_ in range(rounds + 1):
            chats = [make_chat(round_ * count + row) for row in range(count)]
            answers = dict[str, list[list[int]]]()
            for name in sorted(decoders, reverse=bool(round_ % 2)):  # neither always comes second
                seconds, answers[name] = decoders[name].answer(chats)
                if round_:  # the first one maps memory
                    speeds[name].append(count * NEW_TOKENS / seconds)
            total += count
            equal += sum(map(list.__eq__, answers[PLAIN], answers[DRAFTED]))
        print_table([Row(f"{name}, {count} at once", "tokens/s", speeds[name]) for name in decoders])
        pairs = zip(speeds[DRAFTED], speeds[PLAIN], strict=True)
        ratios[count] = statistics.median(drafted / plain for drafted, plain in pairs)
    stats = decoders[DRAFTED].lm.memory_stats()
    accepted = stats["draft_tokens_accepted"] / stats["draft_tokens"]
    return Claim(
        "tokens per second of one request that copies its prompt, with drafts to without",
        round(ratios[1], 3),
        MIN_SPEEDUP,
        is_met=ratios[1] >= MIN_SPEEDUP and ratios[16] >= MIN_SPEEDUP_IN_BATCH and equal == total,
        details={
            "with 16 requests": round(ratios[16], 3),
            "equal answers": f"{equal} of {total}",
            "accepted draft tokens": round(accepted, 2),
        },
    )


def make_chat(number: int) -> Any:
    """A request to copy a record with one change."""
    from mstar.requests import ChatRequest, Message, Sampling

    city, other = CITIES[number % len(CITIES)], CITIES[(number + 3) % len(CITIES)]
    lines = [
        f'{{"order": {1000 + 17 * number + line}, "city": "{city}", "status": "shipped", "items": {line + 2}}}'
        for line in range(5)
    ]
    question = f"Copy these lines, and replace {city} by {other}:\n" + "\n".join(lines)
    return ChatRequest((Message("user", (question,)),), sampling=Sampling(max_tokens=NEW_TOKENS))


class Decoding:
    """The language model in an engine, with or without drafts."""

    def __init__(self, draft_tokens: int | None) -> None:
        from mstar.engine.engine import Engine
        from mstar.models.smollm2.smollm2 import LanguageModel

        self.lm = LanguageModel()
        self.lm.name = "lm"
        if draft_tokens is not None:
            self.lm.operator_settings = {"speculative_tokens": str(draft_tokens)}
        self.lm.prepare()
        self._engine = Engine(max_batched_tokens=4096)

    def answer(self, chats: list[Any]) -> tuple[float, list[list[int]]]:
        """Seconds from the first to the last token of all answers, and their tokens."""
        import torch

        from mstar.walk.states import KV

        caches = [self._engine.new_state(self.lm, KV, tenant=str(time.monotonic_ns())) for _ in chats]
        tokens = self._step([torch.tensor(self.lm.prompt_tokens(chat)) for chat in chats], caches, chats)
        answers, started_at = [[int(token)] for token in tokens], time.perf_counter()
        for _ in range(NEW_TOKENS - 1):
            tokens = self._step(tokens, caches, chats)
            for answer, token in zip(answers, tokens, strict=True):
                answer.append(int(token))
        return time.perf_counter() - started_at, answers

    def _step(self, tokens: list[Any], caches: list[Any], chats: list[Any]) -> list[Any]:
        from mstar.engine.jobs import Job, JobDone

        columns = zip(tokens, caches, chats, strict=True)
        jobs = [Job({"tokens": given, "kv": kv, "sampling": chat.sampling}) for given, kv, chat in columns]
        results = self._engine.run(self.lm, self.lm.ops()["next_token"], jobs)
        values = [result.values[0] for result in results if isinstance(result, JobDone)]
        if len(values) < len(jobs):
            raise RuntimeError(f"a step gave {results}")
        return values
