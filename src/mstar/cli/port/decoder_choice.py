"""Chooses how a decoder runs: over paged attention if it writes what `generate` writes, else as transformers runs it.

The choice is a measurement with the tiny network: both decoders check themselves when they are created, and their
tokens for a prompt are compared with those of `generate`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from mstar.errors import LoadError, Unsupported

_NEW_TOKENS = 12
_PROMPT = tuple(range(5, 80, 3))
"""Longer than a sliding window of a tiny config."""


@dataclass(frozen=True, slots=True)
class DecoderChoice:
    """How a decoder runs: lines of its component, and why."""

    source: str
    why: str
    checksum: str
    """Checksum of the weights for the graph cache, as an expression."""


LIBRARY = '''
    def _decoder_class(self) -> Any:
        from mstar.nn.lm.library_decoder import LibraryDecoder

        return LibraryDecoder

    def memory_stats(self) -> dict[str, int]:
        """None: it has no pages."""
        return {}
'''


def choose_decoder(network: Any) -> DecoderChoice:
    """The first decoder that writes what the library writes. Raises Unsupported if none does."""
    from mstar.nn.compile.captured_forward import CapturedForward
    from mstar.nn.compile.graph_capture import eager_forward
    from mstar.nn.lm.decoder import Decoder
    from mstar.nn.lm.library_decoder import LibraryDecoder

    class EagerDecoder(Decoder):
        """Captures no graph, which takes seconds and changes no result."""

        def _capture(self, network: Any, *, is_int8: bool) -> CapturedForward:  # noqa: ARG002 - weights are never quantized here
            return CapturedForward(eager_forward(network))

    expected = _generated(network)
    problem = _difference(EagerDecoder, network, expected)
    if problem is None:
        why = "over paged attention: continuous batching, chunked prefill and a prefix cache"
        return DecoderChoice("", why, "folder.checksum")
    other = _difference(LibraryDecoder, network, expected)
    if other is None:
        why = f"as transformers runs it, one request at a time, because over paged attention {problem}"
        return DecoderChoice(LIBRARY, why, "None")
    raise Unsupported(f"over paged attention {problem}; with its own cache {other}\n  fix: port it by hand")


def _generated(network: Any) -> list[int]:
    import torch

    prompt = torch.tensor([_PROMPT])
    with torch.inference_mode():
        written = network.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=_NEW_TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return written[0, len(_PROMPT) :].tolist()


def _difference(decoder_class: Any, network: Any, expected: list[int]) -> str | None:
    """How the tokens of a decoder differ from those of the library; None if they are equal."""
    import torch

    from mstar.nn.kv.page_pool import PagePool
    from mstar.requests import Sampling
    from mstar.walk.batching import Layout

    try:
        decoder = decoder_class(copy.deepcopy(network), PagePool(16, 16), swap_bytes=0, is_deterministic=False)
    except LoadError as error:
        return f"it is refused: {str(error).partition(chr(10))[0]}"
    cache, tokens, written = decoder.new_cache(None), torch.tensor(_PROMPT), list[int]()
    for _ in range(_NEW_TOKENS):
        layout = Layout(1, (len(tokens),))
        tokens = decoder.next_token(tokens, [cache], [Sampling(max_tokens=1)], layout)[0][0]
        written.append(int(tokens))
    return None if written == expected else f"it writes other tokens than `generate`: {written[:6]}, not {expected[:6]}"
