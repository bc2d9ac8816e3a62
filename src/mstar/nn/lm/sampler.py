"""Sampler: logits processors and token sampling for a batch of requests with different sampling parameters.

Order of the logits processors, per row:

1. logit bias
2. repetition penalty, then presence and frequency penalty
3. allowed token ranges
4. grammar mask (grammar-constrained decoding)
5. temperature, top-k, top-p, min-p
6. sampling with the request's random generator

The order and the arithmetic are those of `generate` in transformers, so equal parameters and seed give equal tokens.
Greedy rows cost one argmax.

A sampled token is a proposal: the walk feeds back that token, another one, or several. So the history records tokens
when they are read, and everything read after the first sampling counts as generated. A chunked prompt must be read
completely before the first sampling.
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
"""Snapshot of a sampler within this process, cheap to take."""
_EMPTY_HISTORY = array("q")
_NOT_FINITE_MESSAGE = (
    "the largest logit is {}\n  fix: look for an overflow of the network's dtype, and for damaged weights"
)
_NO_TOKEN_MESSAGE = "the sampling parameters exclude every token\n  fix: use smaller penalties and biases"


@dataclass(frozen=True, slots=True)
class SamplerSnapshot:
    """State of a sampler as a serializable value, for migration."""

    history: bytes
    """Tokens as 64-bit integers."""
    prompt_length: int | None
    rng_state: Tensor | None
    """State of the random generator."""
    grammar: Grammar | None
    grammar_start: int
    """Position in the history where the constrained output begins."""


class SamplerState:
    """Sampler state of one request: token history, random generator, grammar position."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.history = array("q")
        """All tokens of the prompt and the output. An array, because penalties need it as a tensor."""
        self._vocabulary = vocabulary
        self._prompt_length: int | None = None
        self._generator: Generator | None = None
        self._guide: Guide | None = None

    def append_tokens(self, tokens: list[int]) -> None:
        """Append tokens that the request has read."""
        self.history.fromlist(tokens)

    def fork(self) -> SamplerState:
        """An independent copy, which samples the same tokens."""
        forked = SamplerState(self._vocabulary)
        forked.history = self.history[:]
        forked._prompt_length = self._prompt_length
        forked._generator = self._generator and self._generator.clone_state()
        forked._guide = self._guide and self._guide.fork()
        return forked

    def export(self) -> SamplerSnapshot:
        """The state as a serializable value."""
        rng_state, guide = self._generator and self._generator.get_state(), self._guide
        grammar, start = (None, 0) if guide is None else (guide.grammar, guide.start)
        return SamplerSnapshot(self.history.tobytes(), self._prompt_length, rng_state, grammar, start)

    def load(self, exported: SamplerSnapshot, device: torch.device) -> None:
        """Load an exported state into a new sampler."""
        self.history.frombytes(exported.history)
        self._prompt_length = exported.prompt_length
        if exported.rng_state is not None:
            self._generator = Generator(device)
            self._generator.set_state(exported.rng_state)
        if exported.grammar is not None:
            self._guide = self._new_guide(exported.grammar, exported.grammar_start)  # consumes the history when used

    def snapshot(self) -> RollbackPoint:
        """The current position. Cheap, because the engine takes one per request before every step."""
        generator, guide = self._generator, self._guide
        rng_state = None if generator is None else generator.get_state()
        return len(self.history), self._prompt_length, rng_state, guide, 0 if guide is None else guide.consumed

    def rollback(self, snapshot: RollbackPoint) -> None:
        """Undo everything since this snapshot."""
        length, self._prompt_length, rng_state, self._guide, consumed = snapshot
        del self.history[length:]
        if rng_state is None or self._generator is None:
            self._generator = None  # it is seeded again when it is needed
        else:
            self._generator.set_state(rng_state)
        if self._guide is not None:
            self._guide.rollback(consumed)

    @property
    def has_started(self) -> bool:
        """Whether a token was sampled."""
        return self._prompt_length is not None

    def start_generation(self) -> None:
        """At the first sampling, mark the history so far as the prompt."""
        if self._prompt_length is None:
            self._prompt_length = len(self.history)

    def generated(self) -> array[int]:
        """The tokens read since the first sampling."""
        return self.history[self._prompt_length :]

    def generator(self, seed: int, device: torch.device) -> Generator:
        """The random generator of the request, seeded at its first use."""
        if self._generator is None:
            self._generator = Generator(device).manual_seed(seed)
        return self._generator

    def guide(self, grammar: Grammar) -> Guide:
        """The grammar matcher of the request, advanced over its history.

        Constrained output begins at the first sampling with this grammar. After complete output, further tokens start
        it again.
        """
        if self._guide is None or self._guide.grammar != grammar or not self._guide.advance(self.history):
            self._guide = self._new_guide(grammar, len(self.history))
        return self._guide

    def _new_guide(self, grammar: Grammar, start: int) -> Guide:
        if self._vocabulary is None:
            fix = "pass `vocabulary` to its component"
            raise LoadError(f"a grammar is set, but the model has no vocabulary for grammars\n  fix: {fix}")
        return self._vocabulary.guide(grammar, start)


def sample_tokens(logits: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Tensor:
    """Sample one token per row of logits, as [rows, 1].

    Raises RowsFailed for rows that fail; the caller must then roll back all samplers of the batch.
    """
    for sampler in samplers:
        sampler.start_generation()
    sampled = _argmax_finite(logits, NotFinite, _NOT_FINITE_MESSAGE)
    rows = [row for row, sampling in enumerate(params) if not sampling.is_greedy]
    if rows:
        row_params, row_samplers = [params[row] for row in rows], [samplers[row] for row in rows]
        scores = logits[rows].float()
        try:
            _process_logits(scores, row_params, row_samplers)
            sampled[rows] = _sample_rows(scores, row_params, row_samplers)
        except RowsFailed as failed:
            raise RowsFailed({rows[index]: error for index, error in failed.errors.items()}) from None
    return sampled


def compute_logprobs(logits: Tensor, params: Sequence[Sampling], tokens: Tensor) -> list[Logprobs | None]:
    """Logprobs of the sampled tokens, [rows, 1], for the rows that set `logprobs`."""
    logprobs: list[Logprobs | None] = [None] * len(params)
    rows = [row for row, sampling in enumerate(params) if sampling.logprobs is not None]
    if rows:
        for row, log in zip(rows, logits[rows].float().log_softmax(-1), strict=True):
            top = log.topk(min(params[row].logprobs or 0, len(log)))
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            logprobs[row] = Logprobs(float(log[tokens[row, 0]]), tuple(pairs))
    return logprobs


def _argmax_finite(scores: Tensor, kind: type[MstarError], message: str) -> Tensor:
    """Argmax of each row, as [rows, 1]. Raises RowsFailed for rows whose maximum is not finite."""
    tokens, is_finite = _argmax(scores)
    if not is_finite:
        best = scores.gather(1, tokens)[:, 0].tolist()
        errors = {row: kind(message.format(value)) for row, value in enumerate(best) if not math.isfinite(value)}
        raise RowsFailed(errors)
    return tokens


def _argmax(scores: Tensor) -> tuple[Tensor, bool]:
    """The first maximum, or NaN, of each row, as [rows, 1]; and whether all of them are finite."""
    if native.is_native(scores.dtype, scores.device) and scores.stride(1) == 1:
        return native.argmax(scores)  # ten times as fast as torch.argmax, which is not vectorized
    tokens = scores.argmax(-1, keepdim=True)
    return tokens, bool(scores.gather(1, tokens).isfinite().all())


def _process_logits(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
    """Apply the logits processors in place: logit bias, penalties, allowed ranges, grammar masks."""
    size = scores.shape[1]
    errors: dict[int, Exception] = {}
    guides: dict[int, Guide] = {}
    for row, (sampling, sampler) in enumerate(zip(params, samplers, strict=True)):
        try:
            if unknown := [token for token, _ in sampling.logit_bias if token >= size]:
                raise BadSampling(f"logit_bias has unknown tokens {unknown}\n  fix: use tokens below {size}")
            if sampling.grammar:
                guides[row] = sampler.guide(sampling.grammar)
        except MstarError as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    _apply_logit_bias(scores, params)
    _apply_penalties(scores, params, samplers)
    for row, sampling in enumerate(params):
        if sampling.allowed_ranges:
            _mask_outside_ranges(scores[row], sampling.allowed_ranges)
    if guides:
        scores[[*guides]] += compute_logit_mask(guides, size).to(scores.device)


def _mask_outside_ranges(scores: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
    """Mask the tokens outside these ranges."""
    masked = 0
    for first, end in sorted(ranges):
        scores[masked:first] = -math.inf
        masked = max(masked, end)
    scores[masked:] = -math.inf


def _apply_logit_bias(scores: Tensor, params: Sequence[Sampling]) -> None:
    biases = [(row, token, bias) for row, sampling in enumerate(params) for token, bias in sampling.logit_bias]
    if biases:
        rows, tokens, values = zip(*biases, strict=True)
        indices = (torch.tensor(rows, device=scores.device), torch.tensor(tokens, device=scores.device))
        scores.index_put_(indices, scores.new_tensor(values), accumulate=True)


def _apply_penalties(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> None:
    """Repetition penalty over the history; presence and frequency penalties over the generated tokens."""
    pairs = list(zip(params, samplers, strict=True))
    histories = [sampler.history if sampling.repetition_penalty != 1 else _EMPTY_HISTORY for sampling, sampler in pairs]
    if any(histories):
        rows, tokens = _token_indices(histories, scores)
        factor = scores.new_tensor([sampling.repetition_penalty for sampling in params])[rows]
        before = scores[rows, tokens]
        scores[rows, tokens] = torch.where(before < 0, before * factor, before / factor)
    outputs = [
        sampler.generated() if sampling.presence_penalty or sampling.frequency_penalty else _EMPTY_HISTORY
        for sampling, sampler in pairs
    ]
    if any(outputs):
        rows, tokens = _token_indices(outputs, scores)
        indices, counts = (rows * scores.shape[1] + tokens).unique(return_counts=True)
        rows, tokens = indices // scores.shape[1], indices % scores.shape[1]
        presence = scores.new_tensor([sampling.presence_penalty for sampling in params])[rows]
        frequency = scores.new_tensor([sampling.frequency_penalty for sampling in params])[rows]
        scores[rows, tokens] -= presence + frequency * counts


def _token_indices(histories: Sequence[array[int]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and token ids of all tokens in these histories. Content ids above the vocabulary are left out."""
    joined = array("q")
    for history in histories:
        joined.extend(history)
    tokens = torch.frombuffer(joined, dtype=torch.int64).to(scores.device)
    lengths = torch.tensor([len(history) for history in histories], device=scores.device)
    rows = torch.arange(len(histories), device=scores.device).repeat_interleave(lengths)
    scorable = tokens < scores.shape[1]
    return rows[scorable], tokens[scorable]


def _sample_rows(scores: Tensor, params: Sequence[Sampling], samplers: Sequence[SamplerState]) -> Tensor:
    """The argmax of each row, or a random token if its temperature is not 0."""
    tokens = _argmax_finite(scores, BadSampling, _NO_TOKEN_MESSAGE)
    for row, (sampling, sampler) in enumerate(zip(params, samplers, strict=True)):
        if sampling.temperature:
            tokens[row] = _sample_row(scores[row], sampling, sampler.generator(sampling.seed, scores.device))
    return tokens


def _sample_row(scores: Tensor, params: Sampling, generator: Generator) -> Tensor:
    """Sample one token with temperature, top-k, top-p and min-p.

    Row by row, so that a row costs only what its own parameters need and stays in the CPU cache.
    """
    scores = scores / params.temperature
    tokens = torch.arange(len(scores), device=scores.device)
    noise = torch.empty(len(scores), dtype=torch.float64, device=scores.device).uniform_(generator=generator)
    if 0 < params.top_k < len(scores):
        tokens, noise, scores = _select(scores >= scores.topk(params.top_k).values[-1], tokens, noise, scores)
    probs = scores.softmax(-1)
    if params.top_p < 1:
        # The tokens below this bound add up to less than 1 - top_p, so they need not be sorted.
        tokens, noise, probs = _select(probs > (1 - params.top_p) / len(probs) / 2, tokens, noise, probs)
        order = probs.argsort(descending=True, stable=True)  # the first of equal tokens; unspecified in generate
        order = order[: int((probs[order].cumsum(0) < params.top_p).sum()) + 1]
        tokens, noise, probs = tokens[order], noise[order], probs[order]
    if params.min_p:
        tokens, noise, probs = _select(probs >= params.min_p * probs.max(), tokens, noise, probs)
    # The arithmetic of torch.multinomial (exponential races), and so of generate, for the remaining tokens only.
    times = -torch.log1p(-noise)
    return tokens[_argmax((probs / times.float())[None])[0][0]]


def _select(mask: Tensor, *columns: Tensor) -> list[Tensor]:
    indices = mask.nonzero()[:, 0]
    return [column[indices] for column in columns]
