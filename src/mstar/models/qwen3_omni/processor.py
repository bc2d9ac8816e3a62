"""Qwen3-Omni processor: a conversation as tokens, mel spectrograms and image patches.

It applies the chat template without tools, with the preprocessors and the M-RoPE position rule of transformers. A video
is seen without its audio track, which is a separate part. Only user messages can have media.
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

_SAMPLE_RATE_HZ = 16_000
_VIDEO_FPS = 2.0
"""Sampled frames per second of video."""
_MIN_VIDEO_FRAMES = 4
_MAX_VIDEO_FRAMES = 768
_VIDEO_FRAME_PIXELS = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
"""Minimum and maximum pixels of a video frame."""
_ROLE_TOKENS = 3
"""Tokens of the role header in the talker's own turn."""
_OPENING_TOKENS = 6
"""Positions of the talker between its role header and its first code."""


@dataclass
class _PromptBuilder:
    """Tokens and media of a conversation while its prompt is built."""

    tokens: list[int] = field(default_factory=list[int])
    audio_features: list[Any] = field(default_factory=list[Any])
    visual_patches: list[Any] = field(default_factory=list[Any])
    image_grids: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    video_grids: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    seconds_per_grid: list[float] = field(default_factory=list[float])


class Processor(Component):
    """Tokenizer and preprocessors of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def prepare(self) -> None:
        """Load the tokenizer and the preprocessors."""
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
        """Return the prompt up to the answer: tokens and M-RoPE position offsets, mel spectrograms and image patches,
        then the indices of the tokens that the talker reads, and the position offsets of the talker.
        """
        import torch

        prompt, config = _PromptBuilder(), self._checkpoint.config
        for message in chat.messages:
            self._add_message(message, prompt)
        prompt.tokens += [config.im_start_token_id, *self._tokenize("assistant\n")]
        tokens = torch.tensor(prompt.tokens)
        starts = (tokens == config.im_start_token_id).nonzero()[:, 0]
        messages = torch.bucketize(torch.arange(len(tokens)), starts, right=True) - 1
        user_indices = (tokens[starts[messages] + 1] == config.user_token_id).nonzero()[:, 0]
        talker_indices = torch.cat([user_indices, torch.arange(len(tokens) - _ROLE_TOKENS, len(tokens))])
        padding = tokens.new_full((_OPENING_TOKENS,), config.tts_pad_token_id)
        offsets = self._position_offsets(tokens, prompt, "thinker")
        talker_offsets = self._position_offsets(torch.cat([tokens[talker_indices], padding]), prompt, "talker")
        spectrograms = [torch.from_numpy(features) for features in prompt.audio_features]
        patches = [torch.from_numpy(visual) for visual in prompt.visual_patches]
        return tokens, offsets, spectrograms, patches, talker_indices, talker_offsets

    def _tokenize(self, text: str) -> list[int]:
        return self._checkpoint.tokenizer.encode(text).ids

    def _add_message(self, message: Message, prompt: _PromptBuilder) -> None:
        if message.role != "user" and not all(isinstance(part, str) for part in message.parts):
            raise Unsupported(
                f"a message of role {message.role} has media, only user messages can\n  fix: send the media as the user"
            )
        config = self._checkpoint.config
        prompt.tokens += [config.im_start_token_id, *self._tokenize(f"{message.role}\n")]
        for part in _merge_texts(message.parts):
            prompt.tokens += self._tokenize(part) if isinstance(part, str) else self._media_tokens(part, prompt)
        prompt.tokens += [config.im_end_token_id, *self._tokenize("\n")]

    def _media_tokens(self, part: ContentPart, prompt: _PromptBuilder) -> list[int]:
        """Add a media part to the prompt, and return its placeholder tokens."""
        thinker, token_id = self._checkpoint.config.thinker_config, self._checkpoint.tokenizer.token_to_id
        if isinstance(part, AudioInput):
            prompt.audio_features.append(self._mel_spectrogram(part))
            count, placeholder = _audio_token_count(prompt.audio_features[-1].shape[1]), thinker.audio_token_id
            return [token_id("<|audio_start|>"), *[placeholder] * count, token_id("<|audio_end|>")]
        if isinstance(part, ImageInput):
            patches, placeholder = self._image_patches([part.pixels]), thinker.image_token_id
            prompt.image_grids.append(patches.shape[:3])
        else:
            assert isinstance(part, VideoInput), part
            frames, seconds = _sample_frames(part)
            patches, placeholder = self._video_patches(frames), thinker.video_token_id
            prompt.video_grids.append(patches.shape[:3])
            prompt.seconds_per_grid.append(seconds)
        prompt.visual_patches.append(patches)
        count = patches[..., 0].size // thinker.vision_config.spatial_merge_size**2
        return [token_id("<|vision_start|>"), *[placeholder] * count, token_id("<|vision_end|>")]

    # ---------------------------------------------------------------- media
    def _mel_spectrogram(self, sound: AudioInput) -> np.ndarray:
        samples = resample(sound.samples, sound.rate, _SAMPLE_RATE_HZ)
        options = {"sampling_rate": _SAMPLE_RATE_HZ, "padding": True, "truncation": False, "return_tensors": "np"}
        return self._checkpoint.feature_extractor(samples, **options)["input_features"][0]

    def _image_patches(self, images: Sequence[Any], **options: Any) -> np.ndarray:
        """Convert images of one size to [images, rows, columns, values per patch]."""
        batch = self._checkpoint.image_processor(list(images), return_tensors="np", **options)
        return batch["pixel_values"].reshape(-1, *batch["image_grid_thw"][0, 1:], batch["pixel_values"].shape[1])

    def _video_patches(self, frames: Sequence[Any]) -> np.ndarray:
        """Convert frames to patches that span several frames. Patches of an image repeat it instead."""
        import numpy as np

        depth = self._checkpoint.image_processor.temporal_patch_size
        frames = [*frames, *[frames[-1]] * (-len(frames) % depth)]
        still = self._image_patches(frames, size=_VIDEO_FRAME_PIXELS)
        still = still.reshape(-1, depth, *still.shape[1:3], 3, depth, still.shape[3] // depth // 3)
        moving = np.stack([still[:, index, :, :, :, index] for index in range(depth)], 4)
        return moving.reshape(*moving.shape[:3], -1)

    # ---------------------------------------------------------------- positions
    def _position_offsets(self, tokens: Tensor, prompt: _PromptBuilder, part: str) -> Tensor:
        """Return [tokens, 3]: offsets of the time, row and column positions from the token index."""
        import torch
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

        rule: Any = modeling.Qwen3OmniMoePreTrainedModelForConditionalGeneration
        thinker, part_config = (
            self._checkpoint.config.thinker_config,
            getattr(self._checkpoint.config, f"{part}_config"),
        )
        names = ("image", "video", "audio", "vision_start", "audio_start")
        config = {f"{name}_token_id": getattr(thinker, f"{name}_token_id") for name in names}
        config |= {"audio_config": thinker.audio_config, "position_id_per_seconds": part_config.position_id_per_seconds}
        merged = thinker.vision_config.spatial_merge_size
        network = SimpleNamespace(config=SimpleNamespace(**config), spatial_merge_size=merged)
        network.get_llm_pos_ids_for_vision = partial(rule.get_llm_pos_ids_for_vision, network)
        images, videos = (torch.tensor(grids) if grids else None for grids in (prompt.image_grids, prompt.video_grids))
        lengths = torch.tensor([features.shape[1] for features in prompt.audio_features])
        mask, seconds = torch.ones_like(tokens)[None], torch.tensor(prompt.seconds_per_grid)
        positions, _ = rule.get_rope_index(network, tokens[None], images, videos, mask, False, lengths, seconds)
        return positions[:, 0].T - torch.arange(len(tokens))[:, None]


def _merge_texts(parts: Sequence[ContentPart]) -> list[ContentPart]:
    """Concatenate neighboring texts, because a word can be split between them."""
    joined = list[ContentPart]()
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _audio_token_count(frames: int) -> int:
    """Return the number of placeholder tokens of an audio input."""
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    return int(_get_feat_extract_output_lengths(frames))


def _sample_frames(video: VideoInput) -> tuple[list[Any], float]:
    """Return the sampled frames of a video, and the seconds between two patches."""
    total = len(video.frames)
    count = min(max(total / video.fps * _VIDEO_FPS, _MIN_VIDEO_FRAMES), _MAX_VIDEO_FRAMES, total)
    count = max(1, int(count) // 2 * 2)
    return [video.frames[int(index * total / count)] for index in range(count)], 2 / _VIDEO_FPS
