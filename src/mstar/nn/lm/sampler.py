"""Choosing the next token of every request in a batch, as each wishes, and what a request remembers for it.

The rules and their order are those of transformers' `generate`, so that the same wishes and seed give the same tokens.
What it does not have goes where it would belong: presence and frequency after repetition, a grammar after all of them
and before the temperature. A row that wishes for nothing costs a search for its largest number.

A choice is a proposal. What counts as written is what the walk then feeds back, which may be another token, or several:
so tokens are remembered when they are read, and everything read after the first choice is the request's own text. A
prompt that comes in pieces must therefore be read to its end before anything is chosen.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from mstar.errors import LoadError, MstarError, NotFinite, RowsFailed
from mstar.nn import native
from mstar.nn.lm.grammar import Guide, Vocabulary, compute_logit_mask
from mstar.requests import BadSampling, Grammar, Logprobs, Sampling

RollbackPoint: TypeAlias = tuple[int, int | None, Tensor | None, Guide | None, int]
"""A place to go back to."""
_EMPTY_HISTORY = array("q")
_NOT_FINITE_MESSAGE = (
    "the largest of the logits is {}\n"
    "  fix: look for numbers too large for the network's dtype, and for damaged weights"
)
_NO_TOKEN_MESSAGE = "its wishes leave no token to choose from\n  fix: use smaller penalties and biases"


@dataclass(frozen=True, slots=True)
class SamplerSnapshot:
    """What a chooser remembers, as a value that can be sent."""

    history: bytes
    """Tokens, as integers of 64 bits."""
    prompt_length: int | None
    rng_state: Tensor | None
    """The state of its random numbers."""
    grammar: Grammar | None
    grammar_start: int
    """Where in its history the text under the grammar begins."""


class SamplerState:
    """What choosing tokens for one request remembers."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.history = array("q")
        """Every token it has read, its own text among them. An array, because penalties need it as a tensor."""
        self._vocabulary = vocabulary
        self._prompt_length: int | None = None
        self._generator: Generator | None = None
        self._guide: Guide | None = None

    def append_tokens(self, tokens: list[int]) -> None:
        """Remember tokens that the request has read."""
        self.history.fromlist(tokens)

    def fork(self) -> SamplerState:
        """A chooser that would choose as this one does, and goes its own way."""
        forked = SamplerState(self._vocabulary)
        forked.history = self.history[:]
        forked._prompt_length = self._prompt_length
        forked._generator = self._generator and self._generator.clone_state()
        forked._guide = self._guide and self._guide.fork()
        return forked

    def export(self) -> SamplerSnapshot:
        """All of it as a value."""
        drawn, guide = self._generator and self._generator.get_state(), self._guide
        grammar, text = (None, 0) if guide is None else (guide.grammar, guide.start)
        return SamplerSnapshot(self.history.tobytes(), self._prompt_length, drawn, grammar, text)

    def load(self, exported: SamplerSnapshot, device: torch.device) -> None:
        """Be what was exported. Only for a fresh chooser."""
        self.history.frombytes(exported.history)
        self._prompt_length = exported.prompt_length
        if exported.rng_state is not None:
            self._generator = Generator(device)
            self._generator.set_state(exported.rng_state)
        if exported.grammar is not None:
            self._guide = self._new_guide(exported.grammar, exported.grammar_start)  # which follows what was read

    def snapshot(self) -> RollbackPoint:
        """Where it is now. Cheap: the engine marks every request before every step."""
        generator, guide = self._generator, self._guide
        drawn = None if generator is None else generator.get_state()
        return len(self.history), self._prompt_length, drawn, guide, 0 if guide is None else guide.consumed

    def rollback(self, snapshot: RollbackPoint) -> None:
        """Undo everything since this mark."""
        read, self._prompt_length, drawn, self._guide, read_to = snapshot
        del self.history[read:]
        if drawn is None or self._generator is None:
            self._generator = None  # it will be seeded again
        else:
            self._generator.set_state(drawn)
        if self._guide is not None:
            self._guide.rollback(read_to)

    @property
    def has_started(self) -> bool:
        """Whether a choice was made."""
        return self._prompt_length is not None

    def start_generation(self) -> None:
        """A choice is made: if it is the first, all that was read so far is the prompt."""
        if self._prompt_length is None:
            self._prompt_length = len(self.history)

    def generated(self) -> array[int]:
        """What was read since the first choice."""
        return self.history[self._prompt_length :]

    def generator(self, seed: int, device: torch.device) -> Generator:
        """Where its random numbers come from; the first draw sets the seed."""
        if self._generator is None:
            self._generator = Generator(device).manual_seed(seed)
        return self._generator

    def guide(self, grammar: Grammar) -> Guide:
        """Where its text stands in this grammar.

        A grammar begins at the first choice that wishes for it. When its text is complete and more is read, another
        text begins under it.
        """
        if self._guide is None or self._guide.grammar != grammar or not self._guide.advance(self.history):
            self._guide = self._new_guide(grammar, len(self.history))
        return self._guide

    def _new_guide(self, grammar: Grammar, start: int) -> Guide:
        if self._vocabulary is None:
            fix = "give its component a `Vocabulary`"
            raise LoadError(f"a grammar is wished for, and the model has no tokenizer\n  fix: {fix}")
        return self._vocabulary.guide(grammar, start)


def sample_tokens(logits: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Tensor:
    """One token for each row of logits, as [rows, 1].

    Raises RowsFailed for the rows that no token can be chosen for; every chooser of the batch must then go back.
    """
    for chooser in samplers:
        chooser.start_generation()
    chosen = _argmax_finite(logits, NotFinite, _NOT_FINITE_MESSAGE)
    rows = [row for row, wish in enumerate(params) if not wish.is_greedy]
    if rows:
        own, theirs = [params[row] for row in rows], [samplers[row] for row in rows]
        scores = logits[rows].float()
        try:
            _adjust_scores(scores, own, theirs)
            chosen[rows] = _sample_rows(scores, own, theirs)
        except RowsFailed as failed:
            raise RowsFailed({rows[at]: error for at, error in failed.errors.items()}) from None
    return chosen


def compute_logprobs(logits: Tensor, params: Sequence[Sampling], tokens: Tensor) -> list[Logprobs | None]:
    """How likely the tokens that were chosen, [rows, 1], were; for the rows that wish to know."""
    found: list[Logprobs | None] = [None] * len(params)
    rows = [row for row, wish in enumerate(params) if wish.logprobs is not None]
    if rows:
        for row, log in zip(rows, logits[rows].float().log_softmax(-1), strict=True):
            top = log.topk(min(params[row].logprobs or 0, len(log)))
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            found[row] = Logprobs(float(log[tokens[row, 0]]), tuple(pairs))
    return found


def _argmax_finite(scores: Tensor, kind: type[MstarError], what: str) -> Tensor:
    """The first of the largest numbers of each row, as [rows, 1]. Refuses the rows where it is not finite."""
    chosen, is_finite = _argmax(scores)
    if not is_finite:
        best = scores.gather(1, chosen)[:, 0].tolist()
        raise RowsFailed({row: kind(what.format(one)) for row, one in enumerate(best) if not math.isfinite(one)})
    return chosen


def _argmax(scores: Tensor) -> tuple[Tensor, bool]:
    """The first of the largest numbers of each row, or of its NaNs, as [rows, 1]; if all of them are finite."""
    if native.is_native(scores.dtype, scores.device) and scores.stride(1) == 1:
        return native.argmax(scores)  # torch's own compares one by one, and takes ten times as long
    chosen = scores.argmax(-1, keepdim=True)
    return chosen, bool(scores.gather(1, chosen).isfinite().all())


def _adjust_scores(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
    """Change scores by what was said before, by the tokens' biases and by the grammars."""
    size = scores.shape[1]
    errors: dict[int, Exception] = {}
    guides: dict[int, Guide] = {}
    for row, (wish, chooser) in enumerate(zip(params, samplers, strict=True)):
        try:
            if unknown := [token for token, _ in wish.logit_bias if token >= size]:
                raise BadSampling(f"logit_bias has the tokens {unknown}\n  fix: use tokens below {size}")
            if wish.grammar:
                guides[row] = chooser.guide(wish.grammar)
        except MstarError as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    _apply_logit_bias(scores, params)
    _apply_penalties(scores, params, samplers)
    for row, wish in enumerate(params):
        if wish.allowed_ranges:
            _mask_outside_ranges(scores[row], wish.allowed_ranges)
    if guides:
        scores[[*guides]] += compute_logit_mask(guides, size).to(scores.device)


def _mask_outside_ranges(scores: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
    """Leave no score to the tokens outside of these ranges."""
    done = 0
    for first, end in sorted(ranges):
        scores[done:first] = -math.inf
        done = max(done, end)
    scores[done:] = -math.inf


def _apply_logit_bias(scores: Tensor, params: Sequence[Sampling]) -> None:
    biases = [(row, token, bias) for row, wish in enumerate(params) for token, bias in wish.logit_bias]
    if biases:
        rows, tokens, numbers = zip(*biases, strict=True)
        places = (torch.tensor(rows, device=scores.device), torch.tensor(tokens, device=scores.device))
        scores.index_put_(places, scores.new_tensor(numbers), accumulate=True)


def _apply_penalties(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
    pairs = list(zip(params, samplers, strict=True))
    read = [chooser.history if wish.repetition_penalty != 1 else _EMPTY_HISTORY for wish, chooser in pairs]
    if any(read):
        rows, tokens = _token_places(read, scores)
        factor = scores.new_tensor([wish.repetition_penalty for wish in params])[rows]
        said = scores[rows, tokens]
        scores[rows, tokens] = torch.where(said < 0, said * factor, said / factor)
    written = [
        chooser.generated() if wish.presence_penalty or wish.frequency_penalty else _EMPTY_HISTORY
        for wish, chooser in pairs
    ]
    if any(written):
        rows, tokens = _token_places(written, scores)
        places, counts = (rows * scores.shape[1] + tokens).unique(return_counts=True)
        rows, tokens = places // scores.shape[1], places % scores.shape[1]
        once = scores.new_tensor([wish.presence_penalty for wish in params])[rows]
        each = scores.new_tensor([wish.frequency_penalty for wish in params])[rows]
        scores[rows, tokens] -= once + each * counts


def _token_places(histories: Sequence[array[int]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """The row and the token of everything in these histories that a score stands for."""
    joined = array("q")
    for history in histories:
        joined.extend(history)
    tokens = torch.frombuffer(joined, dtype=torch.int64).to(scores.device)
    lengths = torch.tensor([len(history) for history in histories], device=scores.device)
    rows = torch.arange(len(histories), device=scores.device).repeat_interleave(lengths)
    scorable = tokens < scores.shape[1]
    return rows[scorable], tokens[scorable]


def _sample_rows(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Tensor:
    """The likeliest token of each row, or one at random if it wishes so."""
    chosen = _argmax_finite(scores, BadSampling, _NO_TOKEN_MESSAGE)
    for row, (wish, chooser) in enumerate(zip(params, samplers, strict=True)):
        if wish.temperature:
            chosen[row] = _sample_row(scores[row], wish, chooser.generator(wish.seed, scores.device))
    return chosen


def _sample_row(scores: Tensor, params: Sampling, generator: Generator) -> Tensor:
    """A token at random. Row by row: a row then costs what its own wishes cost, and stays in the processor's cache."""
    scores = scores / params.temperature
    tokens = torch.arange(len(scores), device=scores.device)
    noise = torch.empty(len(scores), dtype=torch.float64, device=scores.device).uniform_(generator=generator)
    if 0 < params.top_k < len(scores):
        tokens, noise, scores = _select(scores >= scores.topk(params.top_k).values[-1], tokens, noise, scores)
    likely = scores.softmax(-1)
    if params.top_p < 1:
        # The others have less than 1 - top_p together, however it is rounded: so most need not be sorted.
        tokens, noise, likely = _select(likely > (1 - params.top_p) / len(likely) / 2, tokens, noise, likely)
        order = likely.argsort(descending=True, stable=True)  # of equals the first; generate leaves that to its sort
        order = order[: int((likely[order].cumsum(0) < params.top_p).sum()) + 1]
        tokens, noise, likely = tokens[order], noise[order], likely[order]
    if params.min_p:
        tokens, noise, likely = _select(likely >= params.min_p * likely.max(), tokens, noise, likely)
    # The arithmetic of torch.multinomial, and so of generate; that also does it for the tokens that were not kept.
    waits = -torch.log1p(-noise)
    return tokens[_argmax((likely / waits.float())[None])[0][0]]


def _select(where: Tensor, *columns: Tensor) -> list[Tensor]:
    places = where.nonzero()[:, 0]
    return [column[places] for column in columns]
