"""SNAC as Orpheus uses it: codes in the order in which a language model writes them become sound while it writes.

The network is that of the package `snac`. The decoder that Orpheus was published with takes the last 28 codes every
seven, keeps the sound of one frame, and adds noise that differs each time. So a frame is decoded four times, its sound
is a little off, and the first frame and the last two are never heard. `go_on` computes a frame once, gives the sound
of the whole, and its noise is a function of the request's seed and the sample's number: what is streamed, what is not,
and what is computed again after a crash are equal. `middle` does as published, with noise that can be repeated:
a function of the seed and the window's codes. Nothing is encoded here.

    pip install --no-deps snac==1.2.1 && pip install einops
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from mstar import Float, Int64, Tensor, op, rows, stacked
from mstar.errors import LoadError
from mstar.nn.audio.codec import Codec, CodecStreamState, LayerMemory
from mstar.nn.weights.sources import Weights

CODES_PER_FRAME = 7
"""Codes of a frame: one of the first level, two of the second and four of the third."""
SAMPLES_PER_FRAME = 2048
"""Samples of a frame."""
END_OF_CODES = -1
"""What stands for a code where nothing follows."""
_LEVEL_POSITIONS = ([0], [1, 4], [2, 3, 5, 6])
"""Which codes of a frame are of which level, in the order in which Orpheus was taught to write them."""


class Snac(Codec):
    """The codec that a folder holds: its config.json, and its tensors as safetensors or, as published, as a .bin."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(lambda: _load_network(weights), _decode_frames, hop=SAMPLES_PER_FRAME, lookahead=3)

    @op(batch=stacked)
    def decode_next(
        self, codes: Int64[Tensor, "W 1"], fresh: int, past: CodecStreamState, seed: int
    ) -> Float[Tensor, "S"]:
        """The sound that these codes settle, of which so many are new. The first must make three frames or end."""
        alike = defaultdict[Any, list[int]](list)
        for row, (new, one) in enumerate(zip(rows(fresh), rows(past), strict=True)):
            alike[new, bool(codes[row, -1] == END_OF_CODES), bool(one.memory)].append(row)
        done: dict[int, tuple[Tensor, LayerMemory]] = {}
        for (new, is_last, _), group in alike.items():
            memories = [rows(past)[row].memory for row in group]
            given = codes[group, codes.shape[1] - new : codes.shape[1] - is_last, 0]
            seeds = [rows(seed)[row] for row in group]
            done |= zip(group, self._decode_group(given, memories, seeds, is_last=is_last), strict=True)
        for row, one in enumerate(rows(past)):  # only now, so that a batch that fails changes nothing
            one.memory = done[row][1]
        return cast("Any", [done[row][0] for row in range(len(codes))])

    def _decode_group(
        self, codes: Tensor, memories: Sequence[LayerMemory], seeds: Sequence[int], *, is_last: bool
    ) -> list[tuple[Tensor, LayerMemory]]:
        """The sound of each stream's next codes, and what is remembered then. All streams begin, or none does."""
        from mstar.nn.audio.streaming import StreamingState, streaming

        past = StreamingState(memories, is_last=is_last)
        if codes.shape[1] < CODES_PER_FRAME and not past.before:
            return [(codes.new_zeros(0).float(), LayerMemory()) for _ in memories]
        with streaming(past):
            sounds = self._decode_seeded(codes, seeds)
        return [(sound, LayerMemory(past.memory(row))) for row, sound in enumerate(sounds)]

    @op(batch=stacked)
    def decode_middle_frame(self, codes: Int64[Tensor, "W 1"], seed: int) -> Float[Tensor, "S"]:
        """The sound of the second of four frames; of a window that is not full, nothing."""
        full = [
            row for row in range(len(codes)) if codes.shape[1] == 4 * CODES_PER_FRAME and codes[row, -1] != END_OF_CODES
        ]
        sounds = [codes.new_zeros(0).float()] * len(codes)
        if full:
            given = codes[full, :, 0]  # of numbers, a hash is the same in every process
            seeds = [hash((rows(seed)[row], *window)) for row, window in zip(full, given.tolist(), strict=True)]
            for row, sound in zip(full, self._decode_seeded(given, seeds), strict=True):
                sounds[row] = sound[SAMPLES_PER_FRAME : 2 * SAMPLES_PER_FRAME]
        return cast("Any", sounds)

    def _decode_seeded(self, codes: Tensor, seeds: Sequence[int]) -> Tensor:
        """[rows, codes] to [rows, samples], each with the noise of its seed. Codes of no whole frame are left out."""
        import torch

        from mstar.models.orpheus.noise import SeededNoiseBlock

        for layer in self.network.decoder.modules():
            if isinstance(layer, SeededNoiseBlock):
                layer.seeds = torch.tensor([(seed + 2**63) % 2**64 - 2**63 for seed in seeds])
        with torch.inference_mode():
            return _decode_frames(
                self.network,
                codes[:, : codes.shape[1] // CODES_PER_FRAME * CODES_PER_FRAME].unflatten(1, (-1, CODES_PER_FRAME)),
            )


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    """[rows, frames, places] codes to [rows, samples]."""
    levels = [codes[:, :, level].flatten(1) for level in _LEVEL_POSITIONS]
    if codes.shape[1]:
        return network.decoder(network.quantizer.from_codes(levels))[:, 0]
    return network.decoder(codes.new_zeros((len(codes), network.latent_dim, 0)).float())[:, 0]


def _load_network(weights: Weights) -> Any:
    """The library's model, whose layers wait for what they look ahead to, and whose noise can be repeated."""
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
        network.load_state_dict(torch.load(file, weights_only=True))  # tensors only: no code of the file is run
    else:
        what = f"{folder} holds neither model.safetensors nor pytorch_model.bin"
        raise LoadError(f"{what}\n  fix: give the folder that does")
    for module in [one for one in network.modules() if is_parametrized(one)]:
        remove_parametrizations(module, "weight")  # which would be computed anew at each step
    layers = [(name, one) for name, one in network.decoder.named_modules() if type(one).__name__ == "NoiseBlock"]
    for number, (name, layer) in enumerate(layers):
        network.decoder.set_submodule(name, SeededNoiseBlock(layer.linear, number))
    make_lookahead_streaming(network.decoder)
    return network


def _import_snac() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it scripts a function as it is imported
        try:
            from snac import SNAC
        except ImportError as error:
            fix = "pip install --no-deps snac==1.2.1 && pip install einops"
            raise LoadError(f"this codec needs a library: {error}\n  fix: {fix}") from error
    return SNAC
