"""SamplerState: what the sampler keeps of one request, its token history, the number of draws and a grammar position.

A sampled token is a proposal: the walk feeds back that token, another one, or several. So the history records tokens
when they are read, and everything read after the first sampling counts as generated. A chunked prompt must be read
completely before the first sampling.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TypeAlias

from mstar.errors import LoadError
from mstar.nn.lm.grammar import Guide, Vocabulary
from mstar.nn.lm.random_numbers import draw_key
from mstar.requests import Grammar

RollbackPoint: TypeAlias = tuple[int, int | None, int, Guide | None, int]
"""Snapshot of a sampler within this process, cheap to take."""


@dataclass(frozen=True, slots=True)
class SamplerSnapshot:
    """State of a sampler as a serializable value, for migration."""

    history: bytes
    """Tokens as 64-bit integers."""
    prompt_length: int | None
    draws: int
    """Number of random draws so far."""
    grammar: Grammar | None
    grammar_start: int
    """Position in the history where the constrained output begins."""


class SamplerState:
    """Sampler state of one request."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.history = array("q")
        """All tokens of the prompt and the output. An array, because penalties need it as one."""
        self._vocabulary = vocabulary
        self.prompt_length: int | None = None
        """Length of the history at the first sampling; None before."""
        self.draws = 0
        """Number of random draws so far."""
        self._guide: Guide | None = None

    def append_tokens(self, tokens: list[int]) -> None:
        """Append tokens that the request has read."""
        self.history.fromlist(tokens)

    def fork(self) -> SamplerState:
        """An independent copy, which samples the same tokens."""
        forked = SamplerState(self._vocabulary)
        forked.history = self.history[:]
        forked.prompt_length, forked.draws = self.prompt_length, self.draws
        forked._guide = self._guide and self._guide.fork()
        return forked

    def export(self) -> SamplerSnapshot:
        """The state as a serializable value."""
        guide = self._guide
        grammar, start = (None, 0) if guide is None else (guide.grammar, guide.start)
        return SamplerSnapshot(self.history.tobytes(), self.prompt_length, self.draws, grammar, start)

    def load(self, exported: SamplerSnapshot) -> None:
        """Load an exported state into a new sampler."""
        self.history.frombytes(exported.history)
        self.prompt_length, self.draws = exported.prompt_length, exported.draws
        if exported.grammar is not None:
            self._guide = self._new_guide(exported.grammar, exported.grammar_start)  # consumes the history when used

    def snapshot(self) -> RollbackPoint:
        """The current position. Cheap, because the engine takes one per request before every step."""
        guide = self._guide
        return len(self.history), self.prompt_length, self.draws, guide, 0 if guide is None else guide.consumed

    def rollback(self, snapshot: RollbackPoint) -> None:
        """Undo everything since this snapshot."""
        length, self.prompt_length, self.draws, self._guide, consumed = snapshot
        del self.history[length:]
        if self._guide is not None:
            self._guide.rollback(consumed)

    def start_generation(self) -> None:
        """Mark the history so far as the prompt: a token is sampled for the first time."""
        self.prompt_length = len(self.history)

    def generated(self) -> array[int]:
        """The tokens read since the first sampling."""
        return self.history[self.prompt_length :]

    @property
    def generated_count(self) -> int:
        """Number of tokens read since the first sampling."""
        return 0 if self.prompt_length is None else len(self.history) - self.prompt_length

    def next_draw(self, seed: int) -> int:
        """The key of the next random draw of the request."""
        self.draws += 1
        return draw_key(seed, self.draws - 1)

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
