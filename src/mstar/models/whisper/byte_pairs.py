"""Byte-pair tokenizer from a list of ranked tokens, the format of tiktoken, which has no list of merges."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def make_tokenizer(tokens: Mapping[int, bytes]) -> Any:
    """A tokenizer of the `tokenizers` library with these tokens by id. A token with a smaller id is merged earlier."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = bytes_to_unicode()
    ranks = {token: rank for rank, token in tokens.items()}

    def spell(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    parts = [split(token, ranks) for token in ranks if len(token) > 1]
    merges = [(spell(left), spell(right)) for left, right in parts]
    tokenizer: Any = Tokenizer(BPE({spell(token): rank for token, rank in ranks.items()}, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def split(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that are merged to this one: what the merges before it make of its bytes."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
