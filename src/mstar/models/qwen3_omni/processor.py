"""The reader of Qwen3-Omni: a conversation as the tokens, spectra and patches that its networks were trained with.

Spectra and patches are made by transformers' own processors, and the places of what is seen are its own rule. Turns are
put as in its chat template; it is told of no tools. A clip is seen without its sound: what is heard of it is a part of
its own. Users show pictures and sound; nobody else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mstar import Component, Float, Int64, Tensor, op
from mstar.errors import Unsupported
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, ChatRequest, ContentPart, ImageInput, Message, VideoInput

if TYPE_CHECKING:
    import numpy as np

_SAMPLE_RATE_HZ, _VIDEO_FPS, _MIN_VIDEO_FRAMES, _MAX_VIDEO_FRAMES = 16_000, 2.0, 4, 768
"""The rate at which it hears, how many frames of a second it sees, and of a clip at least and at most."""
_VIDEO_FRAME_PIXELS = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
"""How many pixels a frame of a clip has."""
_ROLE_TOKENS, _OPENING_TOKENS = 3, 6
"""So many places the talker's own turn has for whose it is, and then before it speaks."""


@dataclass
class _PromptBuilder:
    """What was written down of a conversation so far."""

    tokens: list[int] = field(default_factory=list[int])
    audio_features: list[Any] = field(default_factory=list[Any])
    visual_patches: list[Any] = field(default_factory=list[Any])
    image_grids: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    video_grids: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    seconds_per_grid: list[float] = field(default_factory=list[float])


class Processor(Component):
    """The tokenizer and the processors that a checkpoint has."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load them."""
        _ = self._checkpoint.tokenizer, self._checkpoint.feature_extractor, self._checkpoint.image_processor

    @op
    def process(
        self, chat: ChatRequest
    ) -> tuple[
        Int64[Tensor, "T"],
        Float[Tensor, "T 3"],
        list[Float[Tensor, "M F"]],
        list[Float[Tensor, "F H W K"]],
        Int64[Tensor, "U"],
        Float[Tensor, "V 3"],
    ]:
        """A conversation up to where the answer begins: its tokens and how far each is from its number, what is heard
        and seen in it; which of the tokens the talker is told of, and how far what it reads is from its numbers.
        """
        import torch

        sheet, config = _PromptBuilder(), self._checkpoint.config
        for turn in chat.messages:
            self._add_message(turn, sheet)
        sheet.tokens += [config.im_start_token_id, *self._tokenize("assistant\n")]
        tokens = torch.tensor(sheet.tokens)
        starts = (tokens == config.im_start_token_id).nonzero()[:, 0]
        turns = torch.bucketize(torch.arange(len(tokens)), starts, right=True) - 1
        users = (tokens[starts[turns] + 1] == config.user_token_id).nonzero()[:, 0]
        told = torch.cat([users, torch.arange(len(tokens) - _ROLE_TOKENS, len(tokens))])
        read = torch.cat([tokens[told], tokens.new_full((_OPENING_TOKENS,), config.tts_pad_token_id)])
        away, read_away = (
            self._position_offsets(one, sheet, of) for one, of in ((tokens, "thinker"), (read, "talker"))
        )
        sounds, sights = (
            [torch.from_numpy(one) for one in given] for given in (sheet.audio_features, sheet.visual_patches)
        )
        return tokens, away, sounds, sights, told, read_away

    def _tokenize(self, text: str) -> list[int]:
        return self._checkpoint.tokenizer.encode(text).ids

    def _add_message(self, message: Message, prompt: _PromptBuilder) -> None:
        if message.role != "user" and not all(isinstance(part, str) for part in message.parts):
            raise Unsupported(f"the {message.role} shows it something\n  fix: show it as the user")
        config = self._checkpoint.config
        prompt.tokens += [config.im_start_token_id, *self._tokenize(f"{message.role}\n")]
        for text in _merge_texts(message.parts):
            prompt.tokens += self._tokenize(text) if isinstance(text, str) else self._media_tokens(text, prompt)
        prompt.tokens += [config.im_end_token_id, *self._tokenize("\n")]

    def _media_tokens(self, part: ContentPart, prompt: _PromptBuilder) -> list[int]:
        """The tokens that stand for something heard or seen."""
        thinker, number = self._checkpoint.config.thinker_config, self._checkpoint.tokenizer.token_to_id
        if isinstance(part, AudioInput):
            prompt.audio_features.append(self._mel_spectrogram(part))
            count, kind = _audio_token_count(prompt.audio_features[-1].shape[1]), thinker.audio_token_id
            return [number("<|audio_start|>"), *[kind] * count, number("<|audio_end|>")]
        if isinstance(part, ImageInput):
            patches, kind = self._image_patches([part.pixels]), thinker.image_token_id
            prompt.image_grids.append(patches.shape[:3])
        else:
            assert isinstance(part, VideoInput), part
            frames, every = _sample_frames(part)
            patches, kind = self._video_patches(frames), thinker.video_token_id
            prompt.video_grids.append(patches.shape[:3])
            prompt.seconds_per_grid.append(every)
        prompt.visual_patches.append(patches)
        count = patches[..., 0].size // thinker.vision_config.spatial_merge_size**2
        return [number("<|vision_start|>"), *[kind] * count, number("<|vision_end|>")]

    # ---------------------------------------------------------------- sound and pictures
    def _mel_spectrogram(self, sound: AudioInput) -> np.ndarray:

        samples = resample(sound.samples, sound.rate, _SAMPLE_RATE_HZ)
        how = {"sampling_rate": _SAMPLE_RATE_HZ, "padding": True, "truncation": False, "return_tensors": "np"}
        return self._checkpoint.feature_extractor(samples, **how)["input_features"][0]

    def _image_patches(self, images: Sequence[Any], **how: Any) -> np.ndarray:
        """Pictures of one size as [pictures, rows, columns, numbers of a patch]."""
        made = self._checkpoint.image_processor(list(images), return_tensors="np", **how)
        return made["pixel_values"].reshape(-1, *made["image_grid_thw"][0, 1:], made["pixel_values"].shape[1])

    def _video_patches(self, frames: Sequence[Any]) -> np.ndarray:
        """Frames as patches that each hold several of them, where a picture's hold it several times."""
        import numpy as np

        depth = self._checkpoint.image_processor.temporal_patch_size
        frames = [*frames, *[frames[-1]] * (-len(frames) % depth)]
        still = self._image_patches(frames, size=_VIDEO_FRAME_PIXELS)
        still = still.reshape(-1, depth, *still.shape[1:3], 3, depth, still.shape[3] // depth // 3)
        moving = np.stack([still[:, number, :, :, :, number] for number in range(depth)], 4)
        return moving.reshape(*moving.shape[:3], -1)

    # ---------------------------------------------------------------- places
    def _position_offsets(self, tokens: Tensor, prompt: _PromptBuilder, part: str) -> Tensor:
        """[tokens, 3]: how far the moment, the row and the column of each are from its number."""
        import torch
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as theirs

        rule: Any = theirs.Qwen3OmniMoePreTrainedModelForConditionalGeneration
        thinker, own = self._checkpoint.config.thinker_config, getattr(self._checkpoint.config, f"{part}_config")
        names = ("image", "video", "audio", "vision_start", "audio_start")
        config = {f"{name}_token_id": getattr(thinker, f"{name}_token_id") for name in names}
        config |= {"audio_config": thinker.audio_config, "position_id_per_seconds": own.position_id_per_seconds}
        merged = thinker.vision_config.spatial_merge_size
        network = SimpleNamespace(config=SimpleNamespace(**config), spatial_merge_size=merged)
        network.get_llm_pos_ids_for_vision = partial(rule.get_llm_pos_ids_for_vision, network)
        pictures, clips = (torch.tensor(grids) if grids else None for grids in (prompt.image_grids, prompt.video_grids))
        lengths = torch.tensor([sound.shape[1] for sound in prompt.audio_features])
        there, seconds = torch.ones_like(tokens)[None], torch.tensor(prompt.seconds_per_grid)
        positions, _ = rule.get_rope_index(network, tokens[None], pictures, clips, there, False, lengths, seconds)
        return positions[:, 0].T - torch.arange(len(tokens))[:, None]


def _merge_texts(parts: Sequence[ContentPart]) -> list[ContentPart]:
    """Parts with neighbouring texts joined: words may be split between them."""
    joined = list[ContentPart]()
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _audio_token_count(frames: int) -> int:
    """How many places a sound has."""
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    return int(_get_feat_extract_output_lengths(frames))


def _sample_frames(clip: VideoInput) -> tuple[list[Any], float]:
    """The frames of a clip that are seen, and how many seconds there are between those of two patches."""
    total = len(clip.frames)
    count = min(max(total / clip.fps * _VIDEO_FPS, _MIN_VIDEO_FRAMES), _MAX_VIDEO_FRAMES, total)
    count = max(1, int(count) // 2 * 2)
    return [clip.frames[int(number * total / count)] for number in range(count)], 2 / _VIDEO_FPS
