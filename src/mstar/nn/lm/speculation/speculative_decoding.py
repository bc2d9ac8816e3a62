"""Speculative decoding by prompt lookup: draft tokens are verified by the forward that computes the next token.

A forward reads all weights, however few positions it has. So what followed the last tokens of a request when they
occurred before (`mstar.nn.lm.speculation.prompt_lookup`) is computed beside its next token. Where the walk then feeds
back the tokens of the draft, their logits exist already, and no forward is needed.

Tokens are sampled from the same logits with the same history and the same random numbers as without it, whatever the
sampling parameters: a draft only decides what is computed early (`mstar.nn.lm.speculation.verified_draft`).

| request of a batch | what runs |
|---|---|
| feeds back the next token of its draft | nothing: it samples from the logits of the draft |
| feeds back another token, or has no draft | a forward of this token, and of a new draft if one is worth it |
| reads a prompt | a forward of the prompt, without a draft for its batch |

How many draft tokens a forward verifies depends on how often those of the request were right, and on what a position
costs at this batch size (`mstar.nn.lm.speculation.step_costs`): it turns itself off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mstar.errors import LoadError, OutOfPages
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.paged_attention import AttentionBatch, allocate_tokens, describe_batch, extend_caches
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.speculation.prompt_lookup import look_up
from mstar.nn.lm.speculation.step_costs import StepCosts
from mstar.nn.lm.speculation.verified_draft import VerifiedDraft
from mstar.requests import Sampling
from mstar.walk.batching import Layout, failures_of

RunForward = Callable[[Tensor, AttentionBatch, Tensor], tuple[Tensor, Tensor]]
"""Runs embeddings as a batch; returns the logits at some of its positions, and all hidden states."""
_MEASURED, _REPEATS = (1, 2, 3, 5, 9, 17, 33), 3
"""Numbers of positions whose forwards are measured at load time, the shortest of several."""
_FIRST_CHANCE = 0.6
"""Probability that a draft token is right, for a request without drafts so far."""
_EMA_WEIGHT = 0.2
"""Weight of the newest draft token in the moving average of a request."""
_RECOVERY = 0.02
"""Part of the way back to _FIRST_CHANCE per token without a draft: an answer can begin to repeat something later."""


class TargetDecoder(Protocol):
    """The decoder whose tokens are drafted: `mstar.nn.lm.decoder.Decoder`."""

    store: KVStore
    device: torch.device
    captures_steps: bool

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of tokens."""
        ...

    def next_token_with_hidden(
        self,
        inputs: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        content_ids: Tensor | None = None,
        *,
        is_copied: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append a ragged batch to the caches; return next tokens, logits and hidden states."""
        ...

    def share_full_pages(self, caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Add the pages that were filled by this number of new positions of each cache to the prefix cache."""
        ...


class SpeculativeDecoding:
    """The drafts of the requests of one decoder, of up to `max_tokens` tokens each."""

    def __init__(self, decoder: TargetDecoder, run: RunForward, max_tokens: int) -> None:
        _check(decoder)
        self._decoder, self._run, self._max_tokens = decoder, run, max_tokens
        self._costs = StepCosts(self._measure())
        self._chances = WeakKeyDictionary[PagedKV, float]()
        """Probability that the next draft token of a request is right."""
        self.drafted = 0
        """Number of draft tokens that were computed."""
        self.accepted = 0
        """Number of those that a walk has fed back."""

    @torch.inference_mode()
    def _measure(self) -> dict[int, float]:
        """Seconds of forwards by their number of positions."""
        store, seconds = self._decoder.store, dict[int, float]()
        for count in _MEASURED:
            times = list[float]()
            for _ in range(_REPEATS):
                cache = PagedKV(store, SamplerState())
                batch = extend_caches(store, [cache], [count])
                started_at = time.perf_counter()
                self._run(self._decoder.embed(torch.zeros(count, dtype=torch.int64)), batch, torch.arange(count))
                times.append(time.perf_counter() - started_at)
                cache.free()
            seconds[count] = min(times)
        return seconds

    @torch.inference_mode()
    def next_token(
        self, inputs: Tensor, caches: list[PagedKV], params: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Append the tokens of a ragged batch to the caches; return next tokens and logits."""
        offsets, lasts = layout.offsets, dict[int, int]()
        for row, length in enumerate(layout.lengths):
            if length == 1 and row not in layout.unfinished and caches[row].sampler.prompt_length is not None:
                lasts[row] = int(inputs[offsets[row]])
        drafts = {row: draft for row, token in lasts.items() if (draft := self._draft(caches[row], token)) is not None}
        others = [row for row in range(len(caches)) if row not in drafts]
        if not drafts:
            return self._run_others(inputs, caches, params, layout, lasts)
        logits = torch.stack([self._accept(draft, caches[row]) for row, draft in drafts.items()])
        rows = [*drafts]
        self._decoder.share_full_pages([caches[row] for row in rows], [1] * len(rows))
        with failures_of(rows):
            tokens = sample_tokens(logits, [params[row] for row in rows], [caches[row].sampler for row in rows])
        if not others:
            return tokens, logits
        parts = inputs.split(list(layout.lengths))
        with failures_of(others):
            more_tokens, more_logits = self._run_others(
                torch.cat([parts[row] for row in others]),
                [caches[row] for row in others],
                [params[row] for row in others],
                layout.select(others),
                {number: lasts[row] for number, row in enumerate(others) if row in lasts},
            )
        order = torch.tensor([*rows, *others]).argsort()
        return torch.cat([tokens, more_tokens])[order], torch.cat([logits, more_logits])[order]

    def _draft(self, cache: PagedKV, token: int) -> VerifiedDraft | None:
        """The draft of a cache that goes on with this token. Another one is dropped."""
        draft = cache.guess.step
        if not isinstance(draft, VerifiedDraft):
            return None
        if draft.continues(cache, token):
            return draft
        self._learn(cache, is_right=False)
        cache.guess.drop()
        return None

    def _accept(self, draft: VerifiedDraft, cache: PagedKV) -> Tensor:
        self.accepted += 1
        self._learn(cache, is_right=True)
        return draft.accept(cache)

    def _run_others(
        self,
        inputs: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        lasts: dict[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Run rows without a draft; `lasts` has the tokens of those that decode."""
        if len(lasts) == len(caches):
            return self._decode([*lasts.values()], caches, params)
        for cache in caches:
            cache.guess.drop()
        return self._decoder.next_token_with_hidden(inputs, caches, params, layout, is_copied=False)[:2]

    def _decode(self, tokens: list[int], caches: list[PagedKV], params: Sequence[Sampling]) -> tuple[Tensor, Tensor]:
        """Append one token to each cache, and verify new drafts in the same forward."""
        decoder = self._decoder
        for cache, token in zip(caches, tokens, strict=True):
            cache.sampler.history.append(token)
        drafts = self._propose(caches, params)
        counts = [1 + len(draft) for draft in drafts]
        try:
            slots = allocate_tokens(decoder.store, caches, counts)
        except OutOfPages:
            drafts, counts = [list[int]()] * len(caches), [1] * len(caches)
            slots = allocate_tokens(decoder.store, caches, counts)
        batch = describe_batch(decoder.store, caches, counts, slots)
        given = [each for token, draft in zip(tokens, drafts, strict=True) for each in (token, *draft)]
        started_at = time.perf_counter()
        logits = self._run(decoder.embed(torch.tensor(given)), batch, torch.arange(len(given)))[0]
        self._costs.learn(len(given), time.perf_counter() - started_at)
        firsts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        held = dict[int, VerifiedDraft]()
        for row, draft in enumerate(drafts):
            if draft:
                cache, first = caches[row], firsts[row] + 1
                cache.guess.step = held[row] = VerifiedDraft(cache, draft, logits[first : first + len(draft)])
        decoder.share_full_pages(caches, [1] * len(caches))
        if held:
            self.drafted += len(given) - len(caches)
            logits = logits[firsts]
        sampled = sample_tokens(logits, params, [cache.sampler for cache in caches])
        for row, draft in held.items():
            if int(sampled[row]) == drafts[row][0]:
                draft.keep_logits()
            else:
                self._learn(caches[row], is_right=False)
                caches[row].guess.drop()
        return sampled, logits

    def _propose(self, caches: Sequence[PagedKV], params: Sequence[Sampling]) -> list[list[int]]:
        """Draft tokens to verify for each cache."""
        drafts = list[list[int]]()
        for cache, sampling in zip(caches, params, strict=True):
            left = sampling.max_tokens - cache.sampler.generated_count - 1
            limit = min(self._max_tokens, left)
            drafts.append(look_up(cache.sampler.history, limit) if limit > 0 else [])
        chances = [
            [self._chances.get(cache, _FIRST_CHANCE) ** count for count in range(1, len(draft) + 1)]
            for cache, draft in zip(caches, drafts, strict=True)
        ]
        lengths = self._costs.best_lengths(len(caches), chances)
        for cache, length in zip(caches, lengths, strict=True):
            if not length and (chance := self._chances.get(cache)) is not None:
                self._chances[cache] = chance + _RECOVERY * (_FIRST_CHANCE - chance)
        return [draft[:length] for draft, length in zip(drafts, lengths, strict=True)]

    def _learn(self, cache: PagedKV, *, is_right: bool) -> None:
        before = self._chances.get(cache, _FIRST_CHANCE)
        self._chances[cache] = before + _EMA_WEIGHT * (is_right - before)


def _check(decoder: TargetDecoder) -> None:
    """Raise LoadError for a decoder whose drafts could not be undone, or are of no use."""
    store, problem = decoder.store, ""
    if decoder.device.type != "cpu":
        problem = "the decode steps of a device are launched ahead, one token at a time"
    elif store.rank is not None:
        problem = "its ranks would measure different costs, and verify different drafts"
    elif store.states is not None:
        problem = "recurrent states cannot be undone"
    elif store.window is not None:
        problem = "pages before a sliding window are released"
    elif not type(decoder).captures_steps:
        problem = "its decode steps read more than tokens"
    if problem:
        fix = "remove `speculative_tokens` from the placement"
        raise LoadError(f"no speculative decoding for this network: {problem}\n  fix: {fix}")
