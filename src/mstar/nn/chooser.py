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
from mstar.nn.grammar import Grammar, Guide, Vocabulary, barred
from mstar.nn.sampling import BadSampling, Logprobs, Sampling

Mark: TypeAlias = tuple[int, int | None, Tensor | None, Guide | None, int]
"""A place to go back to."""
_NOTHING = array("q")
_TOO_LARGE = (
    "the largest of the logits is {}\n"
    "  fix: look for numbers too large for the network's dtype, and for damaged weights"
)
_NONE_LEFT = "its wishes leave no token to choose from\n  fix: use smaller penalties and biases"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a chooser remembers, as a value that can be sent."""

    history: bytes
    """Tokens, as integers of 64 bits."""
    prompt: int | None
    drawn: Tensor | None
    """The state of its random numbers."""
    grammar: Grammar | None
    text: int
    """Where in its history the text under the grammar begins."""


class Chooser:
    """What choosing tokens for one request remembers."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.history = array("q")
        """Every token it has read, its own text among them. An array, because penalties need it as a tensor."""
        self._vocabulary = vocabulary
        self._prompt: int | None = None
        self._generator: Generator | None = None
        self._guide: Guide | None = None

    def read(self, tokens: list[int]) -> None:
        """Remember tokens that the request has read."""
        self.history.fromlist(tokens)

    def fork(self) -> Chooser:
        """A chooser that would choose as this one does, and goes its own way."""
        forked = Chooser(self._vocabulary)
        forked.history = self.history[:]
        forked._prompt = self._prompt
        forked._generator = self._generator and self._generator.clone_state()
        forked._guide = self._guide and self._guide.fork()
        return forked

    def export(self) -> Remembered:
        """All of it as a value."""
        drawn, guide = self._generator and self._generator.get_state(), self._guide
        grammar, text = (None, 0) if guide is None else (guide.grammar, guide.start)
        return Remembered(self.history.tobytes(), self._prompt, drawn, grammar, text)

    def load(self, remembered: Remembered, device: torch.device) -> None:
        """Be what was exported. Only for a fresh chooser."""
        self.history.frombytes(remembered.history)
        self._prompt = remembered.prompt
        if remembered.drawn is not None:
            self._generator = Generator(device)
            self._generator.set_state(remembered.drawn)
        if remembered.grammar is not None:
            self._guide = self._new_guide(remembered.grammar, remembered.text)  # which follows what was read

    def mark(self) -> Mark:
        """Where it is now. Cheap: the engine marks every request before every step."""
        generator, guide = self._generator, self._guide
        drawn = None if generator is None else generator.get_state()
        return len(self.history), self._prompt, drawn, guide, 0 if guide is None else guide.read_to

    def go_back(self, mark: Mark) -> None:
        """Undo everything since this mark."""
        read, self._prompt, drawn, self._guide, read_to = mark
        del self.history[read:]
        if drawn is None or self._generator is None:
            self._generator = None  # it will be seeded again
        else:
            self._generator.set_state(drawn)
        if self._guide is not None:
            self._guide.go_back(read_to)

    @property
    def has_begun(self) -> bool:
        """Whether a choice was made."""
        return self._prompt is not None

    def begin(self) -> None:
        """A choice is made: if it is the first, all that was read so far is the prompt."""
        if self._prompt is None:
            self._prompt = len(self.history)

    def written(self) -> array[int]:
        """What was read since the first choice."""
        return self.history[self._prompt :]

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
        if self._guide is None or self._guide.grammar != grammar or not self._guide.follow(self.history):
            self._guide = self._new_guide(grammar, len(self.history))
        return self._guide

    def _new_guide(self, grammar: Grammar, start: int) -> Guide:
        if self._vocabulary is None:
            fix = "give its component a `Vocabulary`"
            raise LoadError(f"a grammar is wished for, and the model has no tokenizer\n  fix: {fix}")
        return self._vocabulary.guide(grammar, start)


def choose_tokens(logits: Tensor, wishes: Sequence[Sampling], choosers: Sequence[Chooser]) -> Tensor:
    """One token for each row of logits, as [rows, 1].

    Raises RowsFailed for the rows that no token can be chosen for; every chooser of the batch must then go back.
    """
    for chooser in choosers:
        chooser.begin()
    chosen = _likeliest(logits, NotFinite, _TOO_LARGE)
    rows = [row for row, wish in enumerate(wishes) if not wish.is_plain]
    if rows:
        own, theirs = [wishes[row] for row in rows], [choosers[row] for row in rows]
        scores = logits[rows].float()
        try:
            _steer(scores, own, theirs)
            chosen[rows] = _choose(scores, own, theirs)
        except RowsFailed as failed:
            raise RowsFailed({rows[at]: error for at, error in failed.errors.items()}) from None
    return chosen


def scored(logits: Tensor, wishes: Sequence[Sampling], tokens: Tensor) -> list[Logprobs | None]:
    """How likely the tokens that were chosen, [rows, 1], were; for the rows that wish to know."""
    found: list[Logprobs | None] = [None] * len(wishes)
    rows = [row for row, wish in enumerate(wishes) if wish.logprobs is not None]
    if rows:
        for row, log in zip(rows, logits[rows].float().log_softmax(-1), strict=True):
            top = log.topk(min(wishes[row].logprobs or 0, len(log)))
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            found[row] = Logprobs(float(log[tokens[row, 0]]), tuple(pairs))
    return found


def _likeliest(scores: Tensor, kind: type[MstarError], what: str) -> Tensor:
    """The first of the largest numbers of each row, as [rows, 1]. Refuses the rows where it is not finite."""
    chosen, is_finite = _largest(scores)
    if not is_finite:
        best = scores.gather(1, chosen)[:, 0].tolist()
        raise RowsFailed({row: kind(what.format(one)) for row, one in enumerate(best) if not math.isfinite(one)})
    return chosen


def _largest(scores: Tensor) -> tuple[Tensor, bool]:
    """The first of the largest numbers of each row, or of its NaNs, as [rows, 1]; if all of them are finite."""
    if native.is_native(scores.dtype, scores.device) and scores.stride(1) == 1:
        return native.argmax(scores)  # torch's own compares one by one, and takes ten times as long
    chosen = scores.argmax(-1, keepdim=True)
    return chosen, bool(scores.gather(1, chosen).isfinite().all())


def _steer(scores: Tensor, wishes: Sequence[Sampling], choosers: Sequence[Chooser]) -> None:
    """Change scores by what was said before, by the tokens' biases and by the grammars."""
    size = scores.shape[1]
    errors: dict[int, Exception] = {}
    guides: dict[int, Guide] = {}
    for row, (wish, chooser) in enumerate(zip(wishes, choosers, strict=True)):
        try:
            if unknown := [token for token, _ in wish.logit_bias if token >= size]:
                raise BadSampling(f"logit_bias has the tokens {unknown}\n  fix: use tokens below {size}")
            if wish.grammar:
                guides[row] = chooser.guide(wish.grammar)
        except MstarError as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    _bias(scores, wishes)
    _penalise(scores, wishes, choosers)
    for row, wish in enumerate(wishes):
        if wish.among:
            _bar_others(scores[row], wish.among)
    if guides:
        scores[[*guides]] += barred(guides, size).to(scores.device)


def _bar_others(scores: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
    """Leave no score to the tokens outside of these ranges."""
    done = 0
    for first, end in sorted(ranges):
        scores[done:first] = -math.inf
        done = max(done, end)
    scores[done:] = -math.inf


def _bias(scores: Tensor, wishes: Sequence[Sampling]) -> None:
    biases = [(row, token, bias) for row, wish in enumerate(wishes) for token, bias in wish.logit_bias]
    if biases:
        rows, tokens, numbers = zip(*biases, strict=True)
        places = (torch.tensor(rows, device=scores.device), torch.tensor(tokens, device=scores.device))
        scores.index_put_(places, scores.new_tensor(numbers), accumulate=True)


def _penalise(scores: Tensor, wishes: Sequence[Sampling], choosers: Sequence[Chooser]) -> None:
    pairs = list(zip(wishes, choosers, strict=True))
    read = [chooser.history if wish.repetition_penalty != 1 else _NOTHING for wish, chooser in pairs]
    if any(read):
        rows, tokens = _places(read, scores)
        factor = scores.new_tensor([wish.repetition_penalty for wish in wishes])[rows]
        said = scores[rows, tokens]
        scores[rows, tokens] = torch.where(said < 0, said * factor, said / factor)
    written = [
        chooser.written() if wish.presence_penalty or wish.frequency_penalty else _NOTHING for wish, chooser in pairs
    ]
    if any(written):
        rows, tokens = _places(written, scores)
        places, counts = (rows * scores.shape[1] + tokens).unique(return_counts=True)
        rows, tokens = places // scores.shape[1], places % scores.shape[1]
        once = scores.new_tensor([wish.presence_penalty for wish in wishes])[rows]
        each = scores.new_tensor([wish.frequency_penalty for wish in wishes])[rows]
        scores[rows, tokens] -= once + each * counts


def _places(histories: Sequence[array[int]], scores: Tensor) -> tuple[Tensor, Tensor]:
    """The row and the token of everything in these histories that a score stands for."""
    joined = array("q")
    for history in histories:
        joined.extend(history)
    tokens = torch.frombuffer(joined, dtype=torch.int64).to(scores.device)
    lengths = torch.tensor([len(history) for history in histories], device=scores.device)
    rows = torch.arange(len(histories), device=scores.device).repeat_interleave(lengths)
    scorable = tokens < scores.shape[1]
    return rows[scorable], tokens[scorable]


def _choose(scores: Tensor, wishes: Sequence[Sampling], choosers: Sequence[Chooser]) -> Tensor:
    """The likeliest token of each row, or one at random if it wishes so."""
    chosen = _likeliest(scores, BadSampling, _NONE_LEFT)
    for row, (wish, chooser) in enumerate(zip(wishes, choosers, strict=True)):
        if wish.temperature:
            chosen[row] = _draw(scores[row], wish, chooser.generator(wish.seed, scores.device))
    return chosen


def _draw(scores: Tensor, wish: Sampling, generator: Generator) -> Tensor:
    """A token at random. Row by row: a row then costs what its own wishes cost, and stays in the processor's cache."""
    scores = scores / wish.temperature
    tokens = torch.arange(len(scores), device=scores.device)
    noise = torch.empty(len(scores), dtype=torch.float64, device=scores.device).uniform_(generator=generator)
    if 0 < wish.top_k < len(scores):
        tokens, noise, scores = _only(scores >= scores.topk(wish.top_k).values[-1], tokens, noise, scores)
    likely = scores.softmax(-1)
    if wish.top_p < 1:
        # The others have less than 1 - top_p together, however it is rounded: so most need not be sorted.
        tokens, noise, likely = _only(likely > (1 - wish.top_p) / len(likely) / 2, tokens, noise, likely)
        order = likely.argsort(descending=True, stable=True)  # of equals the first; generate leaves that to its sort
        order = order[: int((likely[order].cumsum(0) < wish.top_p).sum()) + 1]
        tokens, noise, likely = tokens[order], noise[order], likely[order]
    if wish.min_p:
        tokens, noise, likely = _only(likely >= wish.min_p * likely.max(), tokens, noise, likely)
    # The arithmetic of torch.multinomial, and so of generate; that also does it for the tokens that were not kept.
    waits = -torch.log1p(-noise)
    return tokens[_largest((likely / waits.float())[None])[0][0]]


def _only(where: Tensor, *columns: Tensor) -> list[Tensor]:
    places = where.nonzero()[:, 0]
    return [column[places] for column in columns]
