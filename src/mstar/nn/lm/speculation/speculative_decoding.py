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

How many draft tokens a forward verifies depends on how often those of the request were right, verified or not, and on
what the forwards of this batch cost with and without them (`mstar.nn.lm.speculation.draft_lengths`): it turns itself
off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mstar.errors import LoadError, OutOfPages
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.paged_attention import AttentionBatch, allocate_tokens, describe_batch, extend_caches
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.speculation.draft_lengths import Row, best_lengths
from mstar.nn.lm.speculation.prompt_lookup import look_up
from mstar.nn.lm.speculation.step_costs import StepCosts
from mstar.nn.lm.speculation.verified_draft import VerifiedDraft
from mstar.requests import Sampling
from mstar.walk.batching import Layout, failures_of

RunForward = Callable[[Tensor, AttentionBatch, Tensor], tuple[Tensor, Tensor]]
"""Runs embeddings as a batch; returns the logits at some of its positions, and all hidden states."""
_FIRST_CHANCE = 0.6
"""Probability that a draft token is right, for a request without drafts so far."""
_EMA_WEIGHT = 0.1
"""Weight of the newest draft token in the moving average of a request."""


class TargetDecoder(Protocol):
    """The decoder whose tokens are drafted: `mstar.nn.lm.decoder.Decoder`."""

    store: KVStore
    device: torch.device
    captures_steps: bool
    captured: CapturedForward

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


@dataclass(slots=True)
class _Record:
    """What is known of the drafts of a request."""

    chance: float = _FIRST_CHANCE
    """Probability that its next draft token is right: a moving average."""
    proposed: int | None = None
    """The next token, if the draft is right. Known for drafts that were not worth being verified too."""


class SpeculativeDecoding:
    """The drafts of the requests of one decoder, of up to `max_tokens` tokens each."""

    def __init__(self, decoder: TargetDecoder, run: RunForward, max_tokens: int) -> None:
        _check(decoder)
        self._decoder, self._run, self._max_tokens = decoder, run, max_tokens
        self._costs = self._measure()
        self._records = WeakKeyDictionary[PagedKV, _Record]()
        self.drafted = 0
        """Number of draft tokens that were computed."""
        self.accepted = 0
        """Number of those that a walk has fed back."""

    @torch.inference_mode()
    def _measure(self) -> StepCosts:
        """Measure the durations of forwards. The KV cache is allocated, and nothing uses it yet."""
        decoder, store = self._decoder, self._decoder.store

        def run(count: int) -> float:
            cache = PagedKV(store, SamplerState())
            batch = extend_caches(store, [cache], [count])
            started_at = time.perf_counter()
            self._run(decoder.embed(torch.zeros(count, dtype=torch.int64)), batch, torch.arange(count))
            seconds = time.perf_counter() - started_at
            cache.free()
            return seconds

        weight_bytes = decoder.captured.weight_bytes
        position_share = store.position_bytes / weight_bytes if weight_bytes else 0.0
        return StepCosts.measure(run, store.pool.free_pages * store.pool.page_size, position_share)

    @torch.inference_mode()
    def next_token(
        self, inputs: Tensor, caches: list[PagedKV], params: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """Append the tokens of a ragged batch to the caches; return next tokens and logits."""
        lasts = self._last_tokens(inputs, caches, layout)
        drafts = {row: draft for row, token in lasts.items() if (draft := self._draft(caches[row], token)) is not None}
        others = [row for row in range(len(caches)) if row not in drafts]
        if not drafts:
            return self._run_others(inputs, caches, params, layout, lasts, [])
        rows = [*drafts]
        accepted = [caches[row] for row in rows]
        logits = torch.stack(
            [self._accept(draft, cache) for draft, cache in zip(drafts.values(), accepted, strict=True)]
        )
        self._decoder.share_full_pages(accepted, [1] * len(rows))
        with failures_of(rows):
            tokens = sample_tokens(logits, [params[row] for row in rows], [cache.sampler for cache in accepted])
        if not others:
            return tokens, logits
        parts = inputs.split(list(layout.lengths))
        all_tokens, all_logits = tokens.new_empty((len(caches), 1)), logits.new_empty((len(caches), logits.shape[1]))
        all_tokens[rows], all_logits[rows] = tokens, logits
        with failures_of(others):
            all_tokens[others], all_logits[others] = self._run_others(
                torch.cat([parts[row] for row in others]),
                [caches[row] for row in others],
                [params[row] for row in others],
                layout.select(others),
                {number: lasts[row] for number, row in enumerate(others) if row in lasts},
                accepted,
            )
        return all_tokens, all_logits

    def _last_tokens(self, inputs: Tensor, caches: Sequence[PagedKV], layout: Layout) -> dict[int, int]:
        """The tokens of the rows that decode. They tell whether what was proposed for them was right."""
        tokens, offsets, lasts = inputs.tolist(), layout.offsets, dict[int, int]()
        for row, (cache, length) in enumerate(zip(caches, layout.lengths, strict=True)):
            record = self._records.get(cache)
            if length == 1 and row not in layout.unfinished and cache.sampler.prompt_length is not None:
                lasts[row] = tokens[offsets[row]]
                if record is not None and record.proposed is not None:
                    record.chance += _EMA_WEIGHT * ((record.proposed == lasts[row]) - record.chance)
            if record is not None:
                record.proposed = None
        return lasts

    def _draft(self, cache: PagedKV, token: int) -> VerifiedDraft | None:
        """The draft of a cache that goes on with this token. Another one is dropped."""
        draft = cache.guess.step
        if not isinstance(draft, VerifiedDraft):
            return None
        if draft.continues(cache, token):
            return draft
        cache.guess.drop()
        return None

    def _accept(self, draft: VerifiedDraft, cache: PagedKV) -> Tensor:
        self.accepted += 1
        logits = draft.accept(cache)
        self._record(cache).proposed = next(iter(draft.left), None)
        return logits

    def _run_others(
        self,
        inputs: Tensor,
        caches: list[PagedKV],
        params: Sequence[Sampling],
        layout: Layout,
        lasts: dict[int, int],
        accepted: Sequence[PagedKV],
    ) -> tuple[Tensor, Tensor]:
        """Run rows without a draft; `lasts` has the tokens of those that decode, `accepted` the rows with one."""
        if len(lasts) == len(caches):
            return self._decode([*lasts.values()], caches, params, accepted)
        for cache in caches:
            cache.guess.drop()
        return self._decoder.next_token_with_hidden(inputs, caches, params, layout, is_copied=False)[:2]

    def _decode(
        self, tokens: list[int], caches: list[PagedKV], params: Sequence[Sampling], accepted: Sequence[PagedKV]
    ) -> tuple[Tensor, Tensor]:
        """Append one token to each cache, and verify new drafts in the same forward."""
        decoder = self._decoder
        for cache, token in zip(caches, tokens, strict=True):
            cache.sampler.history.append(token)
        drafts = self._propose(caches, params, accepted)
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
        context = sum([cache.table.length for cache in caches])
        self._costs.learn(len(given), context, time.perf_counter() - started_at)
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
                caches[row].guess.drop()
        return sampled, logits

    def _propose(
        self, caches: Sequence[PagedKV], params: Sequence[Sampling], accepted: Sequence[PagedKV]
    ) -> list[list[int]]:
        """Draft tokens to verify for each cache. `accepted` are the other rows of the batch."""
        drafts, rows = list[list[int]](), list[Row]()
        for cache, sampling in zip(caches, params, strict=True):
            limit = min(self._max_tokens, sampling.max_tokens - cache.sampler.generated_count - 1)
            draft, record = look_up(cache.sampler.history, limit) if limit > 0 else [], self._record(cache)
            record.proposed = next(iter(draft), None)
            drafts.append(draft)
            rows.append(Row(cache.table.length, record.chance, len(draft)))
        if not any(drafts):
            return drafts
        for cache in accepted:
            left = cache.guess.step.left if isinstance(cache.guess.step, VerifiedDraft) else ()
            rows.append(Row(cache.table.length, self._record(cache).chance, len(left), is_verified=True))
        lengths = best_lengths(self._costs, rows)[: len(caches)]
        return [draft[:length] for draft, length in zip(drafts, lengths, strict=True)]

    def _record(self, cache: PagedKV) -> _Record:
        record = self._records.get(cache)
        if record is None:
            record = self._records[cache] = _Record()
        return record


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
