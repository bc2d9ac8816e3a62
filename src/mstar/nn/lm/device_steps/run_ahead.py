"""Run-ahead: the next decode step of a batch is launched before the host has read the tokens of the current one.

vLLM calls this async scheduling, SGLang overlap scheduling.

Its input tokens are copied on the device, so the device does not wait while the host emits tokens, runs the walks and
schedules. When the next call feeds back the sampled tokens, as nearly all do, its step is already running, and the call
only launches the step after it and reads the results.

A step ahead is a guess about what the walk does next. It writes keys and values after the last position of each cache,
and changes nothing else: lengths, histories and draws are advanced by the call that confirms it. So a guess that is
wrong, because a loop stopped or the walk feeds another token, is undone by dropping it. A new page that it needs is
held in reserve until then.

| call | what runs |
|---|---|
| every row was guessed | launch the step after it from the tokens on the device, then read |
| some rows were guessed | a step of the others, then read all, then launch the next step from the tokens on the host |
| a row with penalties or a grammar, which depend on the token before | no guess for its batch |

A guess of a request that rests stays valid: its keys, values and results are its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mstar.errors import OutOfPages
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool, PageTable
from mstar.nn.kv.paged_attention import allocate_tokens
from mstar.nn.lm.device_steps.captured_steps import CapturedSteps, LaunchedStep
from mstar.requests import Sampling
from mstar.walk.batching import Layout, failures_of

RunStep = Callable[[Tensor, list[PagedKV], Sequence[Sampling], Layout], tuple[Tensor, Any]]
"""Appends a ragged batch of tokens to the caches and samples, as [rows, 1] on the host; returns tokens and logits."""
ShareFullPages = Callable[[Sequence[PagedKV], Sequence[int]], None]
"""Adds the pages that were filled by this number of new positions of each cache to the prefix cache."""


class AheadStep:
    """A step that was launched ahead, with the guess for each of its rows.

    What is done for each row is written without calls: all rows of a batch wait for it, in every step.
    """

    def __init__(self, pool: PagePool, caches: Sequence[PagedKV], params: list[Sampling]) -> None:
        self._pool = pool
        self.params = params
        self.lengths = [cache.table.length for cache in caches]
        self.tokens: list[int] = []
        """Its input tokens, which the host knows when the step before was read. Empty if that failed."""
        self.reserve: dict[int, PageTable] = {}
        """Pages that only the new positions use, by row."""
        weakref.finalize(self, _free_all, pool, self.reserve).atexit = False

    def launch(self, steps: CapturedSteps, store: KVStore, tokens: Tensor, caches: Sequence[PagedKV]) -> bool:
        """Launch it; False if there are too few pages, or no graph of its shape."""
        try:
            allocate_tokens(store, caches, [1] * len(caches))
        except OutOfPages:
            return False
        launched = steps.launch(tokens, caches, self.params)
        size = store.pool.page_size
        for row, cache in enumerate(caches):
            table = cache.table
            table.length = length = self.lengths[row]
            if not length % size:
                self._hold_last_page(row, table)
        if launched is None:
            return False
        self.launched: LaunchedStep = launched
        for row, cache in enumerate(caches):  # they have no guess: they were extended just now
            guess = cache.guess
            guess.step, guess.row = self, row
        return True

    def _hold_last_page(self, row: int, table: PageTable) -> None:
        """Hold a page in reserve that no position of a table uses."""
        held = self.reserve[row] = self._pool.new_table()
        held.pages, held.length = [table.pages.pop()], self._pool.page_size

    def confirm(self, caches: Sequence[PagedKV]) -> None:
        """Advance caches whose guesses are right by their positions."""
        for cache in caches:
            guess, sampler = cache.guess, cache.sampler
            guess.step, row = None, guess.row
            if row in self.reserve:
                self._append_held_page(row, cache)
            cache.table.length += 1
            sampler.history.append(self.tokens[row])
            if self.params[row].temperature:
                sampler.draws += 1

    def _append_held_page(self, row: int, cache: PagedKV) -> None:
        table, held = cache.table, self.reserve.pop(row)
        table.pages.append(held.pages.pop())
        held.length = 0
        self._pool.free(held)
        cache.store.page_table.write(cache.row, table.pages, len(table.pages) - 1)

    def release(self, row: int) -> None:
        """Release the page that is held for a row."""
        held = self.reserve.pop(row, None)
        if held is not None:
            self._pool.free(held)


def _free_all(pool: PagePool, reserve: dict[int, PageTable]) -> None:
    for held in reserve.values():
        pool.free(held)


class RunAhead:
    """Decode steps of one decoder, launched ahead."""

    def __init__(self, steps: CapturedSteps, store: KVStore, run: RunStep, share: ShareFullPages) -> None:
        """`run` is a step that is not ahead."""
        self._steps, self._store, self._run, self._share = steps, store, run, share
        self._free_params: list[Sampling] = []
        """Parameters of the last batch in which no row depends on the tokens before."""

    @torch.inference_mode()
    def next_tokens(self, inputs: Tensor, caches: list[PagedKV], params: Sequence[Sampling], layout: Layout) -> Tensor:
        """Append the tokens of a ragged batch to the caches; return the next tokens, as [rows, 1] on the host."""
        guessed = _find_guessed(inputs.tolist(), caches, params, layout)
        others = [row for row, step in enumerate(guessed) if step is None]
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        if others:
            sampled[others] = self._run_others(inputs, caches, params, layout, others)
        reads: list[_Rows] = []
        for step in dict.fromkeys(guessed):
            if step is not None:
                rows = [row for row, each in enumerate(guessed) if each is step]
                own_caches = [caches[row] for row in rows]
                reads.append(_Rows(step, rows, [cache.guess.row for cache in own_caches]))
                step.confirm(own_caches)
                self._share(own_caches, [1] * len(rows))
        if not others and len(reads) == 1:  # the tokens are on the device
            ((step, _, own),) = reads
            ahead = self._launch(step.launched.select_tokens(own), caches, [*params])
            sampled = reads[0].tokens()
            if ahead is not None:
                ahead.tokens = step.launched.read_selected(own)
            return sampled
        for read in reads:
            sampled[read.rows] = read.tokens()
        rows = [row for row in range(len(caches)) if row not in layout.unfinished]
        ahead = self._launch(sampled[rows, 0], [caches[row] for row in rows], [params[row] for row in rows])
        if ahead is not None:
            ahead.tokens = sampled[rows, 0].tolist()
        return sampled

    def _run_others(
        self, inputs: Tensor, caches: list[PagedKV], params: Sequence[Sampling], layout: Layout, rows: list[int]
    ) -> Tensor:
        """Run the rows that were not guessed."""
        for row in rows:
            caches[row].guess.drop()
        if len(rows) == len(caches):
            return self._run(inputs, caches, params, layout)[0]
        parts = inputs.split(list(layout.lengths))
        given = torch.cat([parts[row] for row in rows])
        with failures_of(rows):
            return self._run(given, [caches[row] for row in rows], [params[row] for row in rows], layout.select(rows))[
                0
            ]

    def _launch(self, tokens: Tensor, caches: list[PagedKV], params: list[Sampling]) -> AheadStep | None:
        """Launch the step after the last tokens of these caches; None if it cannot be guessed."""
        if not caches or not self._are_free(params):
            return None
        if all(
            cache.sampler.generated_count + 1 >= sampling.max_tokens
            for cache, sampling in zip(caches, params, strict=True)
        ):
            return None  # all of them end
        ahead = AheadStep(self._store.pool, caches, params)
        return ahead if ahead.launch(self._steps, self._store, tokens, caches) else None

    def _are_free(self, params: list[Sampling]) -> bool:
        """Whether no row depends on the tokens before."""
        if params != self._free_params:  # fast: nearly always they are the same objects
            if any(sampling.depends_on_history for sampling in params):
                return False
            self._free_params = params
        return True


class _Rows(NamedTuple):
    """Rows of a batch that a step was launched for."""

    step: AheadStep
    rows: list[int]
    own: list[int]
    """The same in the step."""

    def tokens(self) -> Tensor:
        """Their tokens, as [rows, 1]. Raises RowsFailed."""
        with failures_of(self.rows):
            return self.step.launched.read(self.own)


def _find_guessed(
    tokens: list[int], caches: Sequence[PagedKV], params: Sequence[Sampling], layout: Layout
) -> list[AheadStep | None]:
    """For each row, the step that was launched ahead for what it is given now; None if there is no such step."""
    lengths, ends, unfinished = layout.lengths, [*accumulate(layout.lengths)], layout.unfinished
    steps: list[AheadStep | None] = [None] * len(caches)
    for row, (cache, sampling) in enumerate(zip(caches, params, strict=True)):
        step: Any = cache.guess.step
        if step is None or not step.tokens or lengths[row] != 1 or row in unfinished:
            continue
        own = cache.guess.row
        is_given = step.tokens[own] == tokens[ends[row] - 1] and step.lengths[own] == cache.table.length
        if is_given and (step.params[own] is sampling or step.params[own] == sampling):
            steps[row] = step
    return steps
