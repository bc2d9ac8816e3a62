"""The composite model of the race: frames of features in, sound out. Three networks with seeded random weights.

An encoder, a Llama of transformers that writes as many tokens as a request asks for, and a causal convolutional codec.
Below the networks they are put together as for a general model server: unequal arrays in a list go in, and where a
batch must be one tensor, the shorter ones are filled up. mstar joins requests by itself: `bench.peers.pipeline_model`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from bench.peers.traffic import HOP, WIDTH

Array = NDArray[Any]
VOCABULARY = 1024


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Weights that are made inside are the same in every process, and no other random state changes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


# ---------------------------------------------------------------- networks
class Encoder(nn.Module):
    """Frames to embeddings of equal number, six layers that see all of a request's frames."""

    def __init__(self) -> None:
        super().__init__()
        with _seeded(0):
            self.project = nn.Linear(WIDTH, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.eval()

    def forward(self, frames: Tensor, lengths: Sequence[int]) -> Tensor:
        """[rows, longest, width] to the same; what lies behind a row's length is nothing."""
        is_nothing = torch.arange(frames.shape[1]) >= torch.tensor(lengths)[:, None]
        return self.layers(self.project(frames), src_key_padding_mask=is_nothing if is_nothing.any() else None)


def llama() -> Any:
    """The language model: six layers, and no token that ends a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.2,
    )
    with _seeded(1):
        return LlamaForCausalLM(shape).eval()


class CausalConv(nn.Module):
    """A convolution that looks back only."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, 7)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inputs, samples] to [rows, outputs, samples]."""
        return self.conv(pad(x, (6, 0)))


class Upsample(nn.Module):
    """Four samples for each, which depend on it and on the one before."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inputs, samples] to [rows, outputs, 4 samples]."""
        return self.conv(x)[..., :-4]


class Decoder(nn.Module):
    """Tokens to sound. A sample depends on its token and on those before it, so what follows it may be anything."""

    def __init__(self) -> None:
        super().__init__()
        with _seeded(2):
            self.embed = nn.Embedding(VOCABULARY, 128)
            sizes = ((128, 64), (64, 32), (32, 16))
            blocks = [nn.Sequential(Upsample(few, many), CausalConv(many, many), nn.GELU()) for few, many in sizes]
            self.layers = nn.Sequential(*blocks, CausalConv(16, 1))
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        """[rows, tokens] to [rows, 64 tokens]."""
        return self.layers(self.embed(tokens).transpose(1, 2))[:, 0]


# ---------------------------------------------------------------- for servers that batch lists
class EncoderStage:
    """The first part."""

    def __init__(self) -> None:
        self._network = Encoder()

    @torch.inference_mode()
    def __call__(self, frames: Sequence[Array]) -> list[Array]:
        """Embeddings of each request's frames."""
        lengths = [len(one) for one in frames]
        hidden = self._network(pad_sequence([torch.tensor(one) for one in frames], batch_first=True), lengths)
        return [row[:length].numpy() for row, length in zip(hidden, lengths, strict=True)]


class GenerateStage:
    """The second part: transformers' own `generate`, greedy, over a batch that is filled up on the left."""

    def __init__(self) -> None:
        self._network = llama()

    @torch.inference_mode()
    def __call__(self, embeddings: Sequence[Array], counts: Sequence[int]) -> list[Array]:
        """Generate the requested number of tokens. All run as long as the longest; surplus tokens are dropped."""
        rows = [torch.tensor(one) for one in embeddings]
        given = pad_sequence(rows, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True, padding_side="left").long()
        how = {"max_new_tokens": max(counts), "do_sample": False}
        made = self._network.generate(inputs_embeds=given, attention_mask=mask, **how)
        return [row[:count].numpy() for row, count in zip(made, counts, strict=True)]


class VocoderStage:
    """The third part."""

    def __init__(self) -> None:
        self._network = Decoder()

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[Array]) -> list[Array]:
        """The sound of each request's tokens."""
        sound = self._network(pad_sequence([torch.tensor(one) for one in tokens], batch_first=True))
        return [row[: len(one) * HOP].numpy() for row, one in zip(sound, tokens, strict=True)]


class FullPipeline:
    """All three in one process, one after the other."""

    def __init__(self) -> None:
        self._stages = EncoderStage(), GenerateStage(), VocoderStage()

    def __call__(self, frames: Sequence[Array], counts: Sequence[int]) -> list[Array]:
        """The sound of each request."""
        encode, write, sound = self._stages
        return [np.ascontiguousarray(one) for one in sound(write(encode(frames), counts))]
