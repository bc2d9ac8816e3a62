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
from typing import Any

import torch
from torch import Tensor

from mstar.errors import OutOfPages, RowsFailed
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool, PageTable
from mstar.nn.kv.paged_attention import allocate_tokens
from mstar.nn.lm.device_steps.captured_steps import CapturedSteps, LaunchedStep
from mstar.requests import Sampling
from mstar.walk.batching import Layout

RunStep = Callable[[Tensor, list[PagedKV], Sequence[Sampling], Layout], tuple[Tensor, Any]]
"""Appends a ragged batch of tokens to the caches and samples, as [rows, 1] on the host; returns tokens and logits."""
ShareFullPages = Callable[[Sequence[PagedKV], Sequence[int]], None]
"""Adds the pages that were filled by this number of new positions of each cache to the prefix cache."""


class AheadStep:
    """A step that was launched ahead, with the guess for each of its rows."""

    def __init__(self, pool: PagePool, caches: Sequence[PagedKV], params: Sequence[Sampling]) -> None:
        self._pool = pool
        self.params = [*params]
        self.lengths = [cache.table.length for cache in caches]
        self.tokens: list[int] = []
        """Its input tokens, which the host knows when the step before was read."""
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
        for row, cache in enumerate(caches):
            self._retract(row, cache.table)
        if launched is None:
            return False
        self.launched: LaunchedStep = launched
        for row, cache in enumerate(caches):
            cache.guess.set(self, row)
        return True

    def _retract(self, row: int, table: PageTable) -> None:
        """Drop the new position of a table. A page that no other position uses is held in reserve."""
        table.length -= 1
        if not table.length % self._pool.page_size:
            held = self.reserve[row] = self._pool.new_table()
            held.pages, held.length = [table.pages.pop()], self._pool.page_size

    def is_right(self, cache: PagedKV, tokens: list[int], sampling: Sampling) -> bool:
        """Whether a cache with a guess of this step was not extended since, and is given what was guessed."""
        row = cache.guess.row
        return (
            len(tokens) == 1
            and self.tokens[row : row + 1] == tokens
            and self.lengths[row] == cache.table.length
            and (self.params[row] is sampling or self.params[row] == sampling)
        )

    def confirm(self, cache: PagedKV, row: int, token: int) -> None:
        """Advance a cache by the position of its row, which has this token."""
        table, held = cache.table, self.reserve.pop(row, None)
        if held is not None:
            table.pages.append(held.pages.pop())
            held.length = 0
            self._pool.free(held)
            cache.store.page_table.write(cache.row, table.pages, len(table.pages) - 1)
        table.length += 1
        cache.guess.drop()
        cache.sampler.history.append(token)
        sampling = self.params[row]
        if sampling.temperature:
            cache.sampler.skip_draw()

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

    @torch.inference_mode()
    def next_tokens(self, inputs: Tensor, caches: list[PagedKV], params: Sequence[Sampling], layout: Layout) -> Tensor:
        """Append the tokens of a ragged batch to the caches; return the next tokens, as [rows, 1] on the host."""
        tokens, ends = inputs.tolist(), [*accumulate(layout.lengths)]
        given = [tokens[end - length : end] for length, end in zip(layout.lengths, ends, strict=True)]
        guessed = {
            row: (step, cache.guess.row)
            for row, cache in enumerate(caches)
            if row not in layout.unfinished
            and isinstance(step := cache.guess.step, AheadStep)
            and step.is_right(cache, given[row], params[row])
        }
        sampled = torch.zeros((len(caches), 1), dtype=torch.int64)
        others = [row for row in range(len(caches)) if row not in guessed]
        if others:
            sampled[others] = self._run_others(inputs, caches, params, layout, others)
        steps = {id(step): step for step, _ in guessed.values()}
        for row, (step, own_row) in guessed.items():
            step.confirm(caches[row], own_row, given[row][0])
        if guessed:
            self._share([caches[row] for row in guessed], [1] * len(guessed))
        rows = [row for row in range(len(caches)) if row not in layout.unfinished]
        if not others and len(steps) == 1:  # the tokens are on the device
            (step,) = steps.values()
            own_rows = [own for _, own in guessed.values()]
            ahead = self._launch(step.launched.select_tokens(own_rows), rows, caches, params)
            sampled = self._read(step, guessed)
            if ahead is not None:
                ahead.tokens = step.launched.read_selected(own_rows)
        else:
            for step in steps.values():
                own = {row: (each, number) for row, (each, number) in guessed.items() if each is step}
                sampled[[*own]] = self._read(step, own)
            ahead = self._launch(sampled[rows, 0], rows, caches, params)
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
        unfinished = frozenset(number for number, row in enumerate(rows) if row in layout.unfinished)
        own = Layout(len(rows), tuple(layout.lengths[row] for row in rows), unfinished)
        try:
            return self._run(
                torch.cat([parts[row] for row in rows]),
                [caches[row] for row in rows],
                [params[row] for row in rows],
                own,
            )[0]
        except RowsFailed as failed:
            raise RowsFailed({rows[number]: error for number, error in failed.errors.items()}) from None

    def _launch(
        self, tokens: Tensor, rows: list[int], caches: list[PagedKV], params: Sequence[Sampling]
    ) -> AheadStep | None:
        """Launch the step after the last tokens of these rows; None if it cannot be guessed."""
        if not rows or any(params[row].depends_on_history for row in rows):
            return None
        own_caches, own_params = [caches[row] for row in rows], [params[row] for row in rows]
        if all(
            cache.sampler.generated_count + 1 >= sampling.max_tokens
            for cache, sampling in zip(own_caches, own_params, strict=True)
        ):
            return None  # all of them end
        ahead = AheadStep(self._store.pool, own_caches, own_params)
        return ahead if ahead.launch(self._steps, self._store, tokens, own_caches) else None

    def _read(self, step: AheadStep, guessed: dict[int, tuple[AheadStep, int]]) -> Tensor:
        """Tokens of these rows of a step, as [rows, 1]. Raises RowsFailed."""
        rows = [*guessed]
        try:
            return step.launched.read([own for _, own in guessed.values()])
        except RowsFailed as failed:
            raise RowsFailed({rows[number]: error for number, error in failed.errors.items()}) from None
