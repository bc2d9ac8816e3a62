"""Grammars: what a text must look like, and so which tokens may follow what was written of it.

A `Grammar` is for model files and servers: making one needs no library, and does not compile it. It is compiled where
the op runs, against the tokens of that model, by llguidance. Nothing here chooses a token.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mstar.errors import LoadError, MstarError, RowsFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from torch import Tensor

_SINGLE_LINE_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as models have seen it most. Where any white space may stand, small models write it without end."""
_MAX_COMPILED_GRAMMARS = 64
"""How many compiled grammars a vocabulary keeps; one takes about a millisecond to compile."""


class BadGrammar(MstarError, ValueError):
    """A grammar cannot be read."""


class GrammarViolation(MstarError):
    """A request's text has left its grammar."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must look like, made by one of the methods below."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | str) -> Grammar:
        """JSON that fits a schema, on one line."""
        try:
            read = json.loads(schema) if isinstance(schema, str) else schema
        except json.JSONDecodeError as error:
            raise BadGrammar(f"the schema {schema!r} is not JSON: {error}\n  fix: give a JSON object") from error
        if not isinstance(read, dict):
            raise BadGrammar(f"the schema {schema!r} is not an object\n  fix: give a dict or a JSON object")
        return cls("json_schema", json.dumps(read))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches from beginning to end; it has no look-around."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, rules: str) -> Grammar:
        """Text that the rule `start` of a context-free grammar makes, in the notation of Lark."""
        return cls("lark", rules)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Grammar:
        """One of these texts."""
        if not texts or not all(texts):
            raise BadGrammar(
                f"{list(texts)!r} leaves nothing to choose\n  fix: give one text or more, none of them empty"
            )
        # Every character by its number: two notations are read here, and their marks differ.
        return cls("regex", "|".join("".join(f"\\x{{{ord(mark):x}}}" for mark in text) for text in texts))


class Vocabulary:
    """The tokens of one model as grammars see them, and the grammars compiled against them.

    `tokenizer` gives the model's `tokenizers.Tokenizer`; `eos_token_ids` are the tokens that
    end a text.
    """

    def __init__(self, tokenizer: Callable[[], Any], eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._compiled = functools.lru_cache(_MAX_COMPILED_GRAMMARS)(self._compile)

    def prepare(self) -> None:
        """Load what grammars need, if it is there: the first wish for one would hold up everybody else's."""
        with contextlib.suppress(LoadError):
            _ = self._ll_tokenizer

    def guide(self, grammar: Grammar, start: int) -> Guide:
        """A text under this grammar that begins at this place of a request's history."""
        return Guide(grammar, self._compiled(grammar).deep_copy(), start, self._ll_tokenizer.vocab_size)

    @functools.cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            fix = "pip install 'mstar-serve[grammar]'"
            raise LoadError(f"a grammar needs llguidance: {error}\n  fix: {fix}") from error
        try:
            return LLTokenizer(self._tokenizer().to_str(), eos_token=self._eos_token_ids)
        except ValueError as error:
            fix = "use a tokenizer that decodes by ByteLevel or ByteFallback"
            raise LoadError(f"the tokenizer does not say which bytes its tokens are: {error}\n  fix: {fix}") from error

    def _compile(self, grammar: Grammar) -> LLMatcher:
        words = self._ll_tokenizer  # loads what is needed, or says what is missing
        from llguidance import LLMatcher

        match grammar.kind:
            case "json_schema":
                text = LLMatcher.grammar_from_json_schema(grammar.text, defaults=_SINGLE_LINE_JSON)
            case "regex":
                text = LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                text = LLMatcher.grammar_from_lark(grammar.text)
        matcher = LLMatcher(words, text, log_level=0)
        if matcher.is_error():
            what = f"the {grammar.kind} grammar {grammar.text!r} cannot be used: {matcher.get_error().strip()}"
            raise BadGrammar(f"{what}\n  fix: correct what it says, or leave that part out")
        return matcher


class Guide:
    """Where one request's text stands in its grammar."""

    def __init__(self, grammar: Grammar, matcher: LLMatcher, start: int, vocab_size: int) -> None:
        self.grammar = grammar
        self.start = start
        """Where in the request's history the text begins."""
        self.consumed = start
        """How much of the request's history it has followed."""
        self._matcher = matcher
        self._vocab_size = vocab_size

    def fork(self) -> Guide:
        """A guide at the same place that goes its own way."""
        forked = Guide(self.grammar, self._matcher.deep_copy(), self.start, self._vocab_size)
        forked.consumed = self.consumed
        return forked

    def advance(self, history: Sequence[int]) -> bool:
        """Read what is new in the history; False if the text was complete before that ended.

        Raises OutsideGrammar at a token that the grammar does not allow.
        """
        unread = list(history[self.consumed :])
        taken = self._matcher.try_consume_tokens(unread)
        self.consumed += taken
        self._check()
        if taken < len(unread) and not self._matcher.is_stopped():
            what = f"the token {unread[taken]} was read where the grammar does not allow it"
            raise GrammarViolation(f"{what}\n  fix: feed back the token that was chosen, or wish for no grammar")
        return taken == len(unread)

    def rollback(self, consumed: int) -> None:
        """Undo what was followed beyond this place."""
        self._matcher.rollback(self.consumed - consumed)
        self.consumed = consumed

    def fill_mask(self, bits: Tensor) -> None:
        """Set a bit of this row of int32 for each token that may follow: when the text is complete, only the end."""
        self._matcher.unsafe_compute_mask_ptr(bits.data_ptr(), self.width * bits.element_size())
        self._check()

    @property
    def width(self) -> int:
        """How many int32 its bits take."""
        return (self._vocab_size + 31) // 32

    def _check(self) -> None:
        if self._matcher.is_error():
            what = f"the {self.grammar.kind} grammar cannot be followed: {self._matcher.get_error().splitlines()[0]}"
            raise GrammarViolation(f"{what}\n  fix: make it simpler, and feed back the token that was chosen")


def compute_logit_mask(guides: dict[int, Guide], size: int) -> Tensor:
    """[guides, size]: minus infinity for each token that may not follow, and 0 for the others.

    Raises RowsFailed for the keys of those that cannot tell.
    """
    import torch

    errors: dict[int, Exception] = {}
    bits = torch.zeros((len(guides), max(guide.width for guide in guides.values())), dtype=torch.int32)
    for (row, guide), own in zip(guides.items(), bits, strict=True):
        try:
            guide.fill_mask(own)
        except GrammarViolation as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    # Eight numbers at a time from a table, and added to scores: several times faster than masks of single bits.
    octets = bits.view(torch.uint8).flatten().int()
    found = _byte_masks().index_select(0, octets).view(len(guides), -1)[:, :size]
    return torch.nn.functional.pad(found, (0, size - found.shape[1]), value=float("-inf"))


@functools.cache
def _byte_masks() -> Tensor:
    """[256, 8]: for each byte of bits, what to add to the scores of its eight tokens."""
    import torch

    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, 0.0, float("-inf"))
