"""Grammar-constrained decoding (structured output): a logit mask of the tokens that a grammar allows next.

llguidance compiles a `mstar.requests.Grammar` against the vocabulary of a model and computes the masks. This module
does not sample: `mstar.nn.lm.sampler` adds the mask to the logits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError, MissingExtra, MstarError, RowsFailed
from mstar.requests import BadGrammar, Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from torch import Tensor

_SINGLE_LINE_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, the format models were trained on most. Where any whitespace is allowed, small models repeat it
without end."""
_MAX_COMPILED_GRAMMARS = 64
"""Maximum number of compiled grammars cached per vocabulary. Compiling one takes about a millisecond."""
_MAX_GRAMMAR_BYTES = 128 << 10
"""Maximum bytes of a grammar. The engine compiles it, so the time that this takes delays other requests."""
_MAX_SHOWN_CHARS = 200
"""Maximum characters of a grammar in an error message."""


class GrammarViolation(MstarError):
    """The tokens of a request do not follow its grammar."""


class Vocabulary:
    """The token bytes of one model, and a cache of the grammars compiled against them.

    `tokenizer` returns the model's `tokenizers.Tokenizer`; `eos_token_ids` are its end-of-sequence tokens.
    """

    def __init__(self, tokenizer: Callable[[], Any], eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._compiled = functools.lru_cache(_MAX_COMPILED_GRAMMARS)(self._compile)

    def prepare(self) -> None:
        """Load llguidance now, if it is installed: loading it in the first request would delay all the others."""
        with contextlib.suppress(LoadError):
            _ = self._ll_tokenizer

    def guide(self, grammar: Grammar, start: int) -> Guide:
        """A matcher for output that begins at position `start` of the request's tokens."""
        return Guide(grammar, self._compiled(grammar).deep_copy(), start, self._ll_tokenizer.vocab_size)

    @functools.cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise MissingExtra.from_package("structured output", "llguidance", "grammar") from error
        try:
            return LLTokenizer(self._tokenizer().to_str(), eos_token=self._eos_token_ids)
        except ValueError as error:
            fix = "use a tokenizer with a ByteLevel or ByteFallback decoder"
            raise LoadError(f"llguidance cannot map the tokenizer's tokens to bytes: {error}\n  fix: {fix}") from error

    def _compile(self, grammar: Grammar) -> LLMatcher:
        tokenizer = self._ll_tokenizer  # raises LoadError if llguidance is missing
        from llguidance import LLMatcher

        if (size := len(grammar.text.encode(errors="replace"))) > _MAX_GRAMMAR_BYTES:
            raise _bad_grammar(grammar, f"it has {size} bytes, maximum {_MAX_GRAMMAR_BYTES}")
        try:
            match grammar.kind:
                case "json_schema":
                    text = LLMatcher.grammar_from_json_schema(grammar.text, defaults=_SINGLE_LINE_JSON)
                case "regex":
                    text = LLMatcher.grammar_from_regex(grammar.text)
                case "lark":
                    text = LLMatcher.grammar_from_lark(grammar.text)
            matcher = LLMatcher(tokenizer, text, log_level=0)
        except ValueError as error:
            raise _bad_grammar(grammar, str(error)) from None
        # The first mask finds what the compiler does not: limits of llguidance, and grammars that match nothing.
        probe = matcher.deep_copy()
        if not matcher.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            raise _bad_grammar(grammar, probe.get_error().strip())
        return matcher


def _bad_grammar(grammar: Grammar, reason: str) -> BadGrammar:
    shown = grammar.text if len(grammar.text) <= _MAX_SHOWN_CHARS else f"{grammar.text[:_MAX_SHOWN_CHARS]}..."
    problem = f"the {grammar.kind} grammar {shown!r} does not compile: {reason}"
    return BadGrammar(f"{problem}\n  fix: correct or remove the part that the message names")


class Guide:
    """Grammar matcher of one request: its position in the grammar after the tokens consumed so far."""

    def __init__(self, grammar: Grammar, matcher: LLMatcher, start: int, vocab_size: int) -> None:
        self.grammar = grammar
        self.start = start
        """Position in the request's tokens where the constrained output begins."""
        self.consumed = start
        """Number of the request's tokens consumed so far."""
        self._matcher = matcher
        self._vocab_size = vocab_size

    def fork(self) -> Guide:
        """An independent copy at the same position."""
        forked = Guide(self.grammar, self._matcher.deep_copy(), self.start, self._vocab_size)
        forked.consumed = self.consumed
        return forked

    def advance(self, history: Sequence[int]) -> bool:
        """Consume the new tokens of the history; False if the output was complete before the last of them.

        Raises GrammarViolation at a token that the grammar does not allow.
        """
        unread = list(history[self.consumed :])
        consumed = self._matcher.try_consume_tokens(unread)
        self.consumed += consumed
        self._check()
        if consumed < len(unread) and not self._matcher.is_stopped():
            problem = f"the grammar does not allow the token {unread[consumed]} at this position"
            raise GrammarViolation(f"{problem}\n  fix: feed back the sampled token, or set no grammar")
        return consumed == len(unread)

    def rollback(self, consumed: int) -> None:
        """Undo the tokens after the first `consumed`."""
        self._matcher.rollback(self.consumed - consumed)
        self.consumed = consumed

    def fill_mask(self, bits: Tensor) -> None:
        """Set the bit of each allowed token in this row of int32; after complete output only end-of-sequence is."""
        self._matcher.unsafe_compute_mask_ptr(bits.data_ptr(), self.width * bits.element_size())
        self._check()

    @property
    def width(self) -> int:
        """Size of its bit mask, in int32."""
        return (self._vocab_size + 31) // 32

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = f"the {self.grammar.kind} grammar failed: {self._matcher.get_error().splitlines()[0]}"
            raise GrammarViolation(f"{problem}\n  fix: simplify the grammar, and feed back the sampled token")


def compute_logit_mask(guides: dict[int, Guide], size: int) -> Tensor:
    """[guides, size]: 0 for each allowed token, minus infinity for the others.

    Raises RowsFailed with the keys of the guides that fail.
    """
    import torch

    errors: dict[int, Exception] = {}
    bits = torch.zeros((len(guides), max(guide.width for guide in guides.values())), dtype=torch.int32)
    for (row, guide), row_bits in zip(guides.items(), bits, strict=True):
        try:
            guide.fill_mask(row_bits)
        except GrammarViolation as error:
            errors[row] = error
    if errors:
        raise RowsFailed(errors)
    # A table lookup of eight tokens at a time is several times faster than testing single bits.
    octets = bits.view(torch.uint8).flatten().int()
    mask = _byte_masks().index_select(0, octets).view(len(guides), -1)[:, :size]
    return torch.nn.functional.pad(mask, (0, size - mask.shape[1]), value=float("-inf"))


@functools.cache
def _byte_masks() -> Tensor:
    """[256, 8]: for each byte of a bit mask, the values to add to the logits of its eight tokens."""
    import torch

    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, 0.0, float("-inf"))
