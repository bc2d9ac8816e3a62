"""SNAC codec for Orpheus: decodes audio codes to samples while the language model writes them.

The network is the package `snac`. The decoder published with Orpheus decodes the last 28 codes every seven codes and
keeps one frame: each frame is decoded four times, differs slightly from the whole decode, has fresh noise, and the
first and the last two frames are lost.

`decode_next` streams instead: it decodes each frame once, equals the whole decode, and draws noise from the seed and
the sample index, so that streamed, unstreamed and recomputed audio are identical. `decode_middle_frame` follows the
published decoder, with noise from the seed and the codes of the window. Encoding is not implemented.

    pip install --no-deps snac==1.2.1 && pip install einops
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any, cast

from mstar import Float, Int64, Tensor, op, rows, stacked
from mstar.errors import LoadError
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.audio.lookahead_codec import LookaheadCodec
from mstar.nn.weights.sources import Weights

CODES_PER_FRAME = 7
"""Codes per frame: one of level 1, two of level 2, four of level 3."""
SAMPLES_PER_FRAME = 2048
"""Samples per frame."""
END_OF_CODES = -1
"""Marks the end of the stream in place of a code."""
_LEVEL_POSITIONS = ([0], [1, 4], [2, 3, 5, 6])
"""Positions of each level within a frame, in the order in which Orpheus writes codes."""


class Snac(LookaheadCodec):
    """SNAC from a folder with config.json and safetensors, or the published .bin."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(lambda: _load_network(weights), _decode_frames, hop=SAMPLES_PER_FRAME, lookahead=3)

    @op(batch=stacked)
    def decode_next(
        self, codes: Int64[Tensor, "W 1"], fresh: int, past: CodecStreamState, seed: int
    ) -> Float[Tensor, "S"]:
        """Decode the samples that `fresh` new codes complete. The first call must bring three frames, or the end."""
        codes = codes.cpu()  # the ends are read; with its seeds, a group is copied to the device at once
        seeds, counts = rows(seed), rows(fresh)
        ends = [bool(row[-1] == END_OF_CODES) for row in codes]
        chunks = [row[len(row) - new : len(row) - end, 0] for row, new, end in zip(codes, counts, ends, strict=True)]
        for row, state in enumerate(rows(past)):
            if not state.memory and len(chunks[row]) < CODES_PER_FRAME:  # no complete frame, so no audio
                chunks[row] = chunks[row][:0]

        def decode(group: list[int], own_codes: Tensor) -> Tensor:
            return self._decode_seeded(own_codes, [seeds[row] for row in group])

        return cast("Any", self.decode_chunks(chunks, ends, rows(past), decode))

    @op(batch=stacked)
    def decode_middle_frame(self, codes: Int64[Tensor, "W 1"], seed: int) -> Float[Tensor, "S"]:
        """Decode the second of four frames. A window that is not full gives no samples."""
        codes = codes.cpu()
        full = [
            row for row in range(len(codes)) if codes.shape[1] == 4 * CODES_PER_FRAME and codes[row, -1] != END_OF_CODES
        ]
        waveforms = [self.on_device(codes.new_zeros(0).float())] * len(codes)
        if full:
            window_codes = codes[full, :, 0]  # hashes of integers are the same in every process
            seeds = [hash((rows(seed)[row], *window)) for row, window in zip(full, window_codes.tolist(), strict=True)]
            for row, samples in zip(full, self._decode_seeded(window_codes, seeds), strict=True):
                waveforms[row] = samples[SAMPLES_PER_FRAME : 2 * SAMPLES_PER_FRAME]
        return cast("Any", waveforms)

    def _decode_seeded(self, codes: Tensor, seeds: Sequence[int]) -> Tensor:
        """Decode [rows, codes] to [rows, samples] with the noise of each seed. Incomplete frames are dropped."""
        import torch

        from mstar.models.orpheus.noise import SeededNoiseBlock
        from mstar.nn.staging import to_device

        complete = codes[:, : codes.shape[1] // CODES_PER_FRAME * CODES_PER_FRAME]
        signed_seeds = [(seed + 2**63) % 2**64 - 2**63 for seed in seeds]
        with torch.inference_mode():
            complete, own_seeds = to_device([complete, signed_seeds], self.device or codes.device)
            for layer in self.network.decoder.modules():
                if isinstance(layer, SeededNoiseBlock):
                    layer.seeds = own_seeds
            return _decode_frames(self.network, complete.unflatten(1, (-1, CODES_PER_FRAME)))


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    """Decode codes [rows, frames, positions] to [rows, samples]."""
    import torch

    by_position = codes.unbind(2)
    levels = [torch.stack([by_position[position] for position in level], 2).flatten(1) for level in _LEVEL_POSITIONS]
    if codes.shape[1]:
        return network.decoder(network.quantizer.from_codes(levels))[:, 0]
    return network.decoder(codes.new_zeros((len(codes), network.latent_dim, 0)).float())[:, 0]


def _load_network(weights: Weights) -> Any:
    """Load the package's model, made streaming with look-ahead, and with seeded noise."""
    import torch
    from safetensors.torch import load_file
    from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

    from mstar.models.orpheus.noise import SeededNoiseBlock
    from mstar.nn.audio.lookahead import make_lookahead_streaming

    folder = weights.path("config.json", "*.safetensors", "*.bin")
    network = _import_snac()(**json.loads((folder / "config.json").read_bytes()))
    if (file := folder / "model.safetensors").is_file():
        network.load_state_dict(load_file(file))
    elif (file := folder / "pytorch_model.bin").is_file():
        network.load_state_dict(torch.load(file, weights_only=True))  # unpickles tensors only, never code
    else:
        what = f"{folder} has neither model.safetensors nor pytorch_model.bin"
        raise LoadError(f"{what}\n  fix: use a folder with one of them")
    for module in [module for module in network.modules() if is_parametrized(module)]:
        remove_parametrizations(module, "weight")  # fold weight norm, instead of computing it in each step
    layers = [
        (name, module) for name, module in network.decoder.named_modules() if type(module).__name__ == "NoiseBlock"
    ]
    for layer_index, (name, layer) in enumerate(layers):
        network.decoder.set_submodule(name, SeededNoiseBlock(layer.linear, layer_index))
    make_lookahead_streaming(network.decoder)
    return network


def _import_snac() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package scripts a function on import
        try:
            from snac import SNAC
        except ImportError as error:
            fix = "pip install --no-deps snac==1.2.1 && pip install einops"
            raise LoadError(f"SNAC needs a library: {error}\n  fix: {fix}") from error
    return SNAC
