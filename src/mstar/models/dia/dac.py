"""DAC codec for Dia: undoes the delays of the codebooks and decodes frames while the decoder writes more of them.

The decoder of DAC is not causal. Its convolutions hold back the output that later frames change, so the stream equals
the decode of all frames at once. Encoding is not implemented.
"""

from __future__ import annotations

from typing import Any, cast

from mstar import Float, Int64, Tensor, op, rows, stacked
from mstar.errors import LoadError
from mstar.models.dia.checkpoint import DELAYS, MAX_DELAY, Checkpoint
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.audio.lookahead_codec import LookaheadCodec
from mstar.nn.weights.sources import Weights

SAMPLE_RATE_HZ = 44_100
HOP_SAMPLES = 512
"""Samples per frame."""


class Dac(LookaheadCodec):
    """DAC of transformers, from its own folder."""

    def __init__(self, checkpoint: Checkpoint, weights: Weights | None) -> None:
        super().__init__(lambda: _load_network(weights or checkpoint.codec), _decode_frames, hop=HOP_SAMPLES)
        self._checkpoint = checkpoint

    @op(batch=stacked, rowwise_on_cpu=True)
    def decode_delayed(self, frames: Int64[Tensor, "W C"], past: CodecStreamState) -> Float[Tensor, "S"]:
        """Audio that the last frames of a window complete, all but its first `MAX_DELAY` ones.

        Frames are as they are written: each codebook after its delay. The speech ends with a frame of end codes.
        """
        import torch

        end = cast("Any", self._checkpoint.config.decoder_config).eos_token_id
        frames = frames.cpu()  # the ends are read
        count = frames.shape[1] - MAX_DELAY
        aligned = torch.stack([frames[:, delay : delay + count, channel] for channel, delay in enumerate(DELAYS)], 2)
        ends = [bool((row[-1] == end).all()) for row in aligned]
        chunks = [row[: len(row) - is_last] for row, is_last in zip(aligned, ends, strict=True)]
        return cast("Any", self.decode_chunks(chunks, ends, rows(past), lambda _, codes: self._decode(codes)))

    def _decode(self, codes: Tensor) -> Tensor:
        return _decode_frames(self.network, codes.to(self.device) if self.device is not None else codes)


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    """Codes [rows, frames, codebooks] to samples [rows, samples]."""
    if codes.shape[1]:
        return network.decode(audio_codes=codes.transpose(1, 2)).audio_values
    return network.decoder(network.decoder.conv1.weight.new_zeros((len(codes), network.config.hidden_size, 0)))[:, 0]


def _load_network(weights: Weights) -> Any:
    """Load the decoder and the codebooks, made streaming with lookahead."""
    from mstar.nn.audio.lookahead import make_lookahead_streaming

    network = weights.network("float32", parts={"decoder": "decoder.", "quantizer": "quantizer."})
    config: Any = network.config
    for name, expected in (
        ("sampling_rate", SAMPLE_RATE_HZ),
        ("hop_length", HOP_SAMPLES),
        ("n_codebooks", len(DELAYS)),
    ):
        if (actual := getattr(config, name, None)) != expected:
            problem = f"the codec {weights.source} has {name} {actual}, expected {expected}"
            raise LoadError(f"{problem}\n  fix: use descript/dac_44khz")
    make_lookahead_streaming(network.decoder)
    return network
