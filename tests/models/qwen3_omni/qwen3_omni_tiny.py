"""Tiny Qwen3-Omni with random weights in the published layout, and the outputs of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["system", "user", "assistant"]
NAMES = ["<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|audio_pad|>"]
NAMES += ["<|image_pad|>", "<|video_pad|>", "<|audio_start|>", "<|audio_end|>", "<|vision_start|>", "<|vision_end|>"]
IDS = {name: number for number, name in enumerate([*BYTES, *WORDS, *NAMES])}
VOCABULARY = 320
CODES = 64
"""Codes per codebook. The talker vocabulary has 1024 more, of which only the end code is sampled."""
END, SPEAKERS = CODES + 10, {"ethan": CODES + 16, "chelsie": CODES + 17}
MEDIA = {"audio_token_id": IDS["<|audio_pad|>"], "image_token_id": IDS["<|image_pad|>"]}
MEDIA |= {"video_token_id": IDS["<|video_pad|>"], "audio_start_token_id": IDS["<|audio_start|>"]}
MEDIA |= {"vision_start_token_id": IDS["<|vision_start|>"], "position_id_per_seconds": 13}


def config(width: int = 32, groups: int = 4, layers: int = 2, deep: int = 2, **wav: Any) -> Qwen3OmniMoeConfig:
    """Config. `n_window` stays as published, because the number of audio positions depends on it."""
    size = max(16, width // 4)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [size // 4, size // 8, size // 8]}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": size, "max_position_embeddings": 4096}
    experts = {"moe_intermediate_size": width // 2, "num_experts": 4, "num_experts_per_tok": 2}
    text = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    text |= {**heads, **experts, "rope_parameters": rope}
    small = {"hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 8, "out_hidden_size": width}
    sound = {"num_mel_bins": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    sound |= {"d_model": 16, "n_window": 50, "n_window_infer": 200, "output_dim": width, "downsample_hidden_size": 8}
    specials = ["codec_eos_token_id", "codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id", "codec_pad_id"]
    numbers = {name: CODES + 10 + number for number, name in enumerate([*specials, "codec_bos_id"])}
    predictor = {"vocab_size": CODES, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": deep}
    vocoder = {"codebook_size": CODES, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    vocoder |= {"sliding_window": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_quantizers": groups}
    vocoder |= {
        "upsample_rates": (4, 2),
        "upsampling_ratios": (2, 2),
        "decoder_dim": 32,
        "max_position_embeddings": 4096,
    }
    return Qwen3OmniMoeConfig(
        thinker_config={
            "audio_config": sound,
            "vision_config": {**small, "depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
            "text_config": {**text, "vocab_size": VOCABULARY},
            "user_token_id": IDS["user"],
            **MEDIA,
        },
        talker_config={
            "text_config": {**text, "vocab_size": CODES + 1024, "shared_expert_intermediate_size": width // 2},
            "code_predictor_config": {**predictor, **heads, "num_code_groups": groups},
            "num_code_groups": groups,
            "thinker_hidden_size": width,
            "accept_hidden_layer": 1,
            "spatial_merge_size": 2,
            "speaker_id": SPEAKERS,
            **numbers,
            **MEDIA,
        },
        code2wav_config={**vocoder, **wav},
        im_start_token_id=IDS["<|im_start|>"],
        im_end_token_id=IDS["<|im_end|>"],
        tts_pad_token_id=IDS["<tts_pad>"],
        tts_bos_token_id=IDS["<tts_text_bos>"],
        tts_eos_token_id=IDS["<tts_text_eod>"],
        system_token_id=IDS["system"],
        user_token_id=IDS["user"],
        assistant_token_id=IDS["assistant"],
    )


def save(folder: Path, **shape: Any) -> str:
    """Save the checkpoint, and return its folder."""
    torch.manual_seed(0)
    network = Qwen3OmniMoeForConditionalGeneration(config(**shape)).eval()
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            fan = weight[0].numel() if weight.ndim == 4 or "code2wav.decoder" in name else weight.shape[-1]
            torch.nn.init.normal_(weight, std=(0.25 if "code2wav.decoder" in name else 1.5) * fan**-0.5)
        elif name.endswith(("gamma", "scale")):
            torch.nn.init.normal_(weight, std=0.5)  # the default is too small for later layers to have an effect
    network.save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    mel = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 32, "sampling_rate": 16_000}
    mel |= {"hop_length": 160, "n_fft": 400, "chunk_length": 300, "padding_value": 0.0, "return_attention_mask": True}
    mel |= {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    mel |= {"size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}, "dither": 0.0}
    (folder / "preprocessor_config.json").write_text(json.dumps(mel))
    return str(folder)


def _tokenizer() -> Tokenizer:
    merges = []
    words = {letter: number for number, letter in enumerate(BYTES)}
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevel()
    made.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    return made


class Reference:
    """transformers' own model and processors, one request at a time."""

    def __init__(self, folder: str) -> None:
        self.network = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder).eval()
        self.network.talker.config.audio_config = self.network.config.thinker_config.audio_config  # missing upstream

    def given(self, model: Any, chat: Any) -> dict[str, Any]:
        """Convert a conversation to transformers inputs."""
        tokens, _, sounds, sights, _, _ = model.processor.process(chat)
        given = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None]}
        if sounds:
            longest = max(one.shape[1] for one in sounds)
            padded = [torch.nn.functional.pad(one, (0, longest - one.shape[1])) for one in sounds]
            given["input_features"] = torch.stack(padded)
            lengths = torch.tensor([one.shape[1] for one in sounds])
            given["feature_attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        parts = [
            part for turn in chat.messages for part in turn.parts if type(part).__name__ in ("ImageInput", "VideoInput")
        ]
        for name, grid, kind in (
            ("pixel_values", "image", "ImageInput"),
            ("pixel_values_videos", "video", "VideoInput"),
        ):
            own = [sight for sight, part in zip(sights, parts, strict=True) if type(part).__name__ == kind]
            if own:
                given[name] = torch.cat([one.flatten(0, 2) for one in own])
                given[f"{grid}_grid_thw"] = torch.tensor([one.shape[:3] for one in own])
        if "video_grid_thw" in given:
            given["video_second_per_grid"] = torch.ones(len(given["video_grid_thw"]))
        return given

    @torch.inference_mode()
    def speak(self, model: Any, chat: Any, frames: int, *, speaker: str = "Ethan") -> tuple[list[int], torch.Tensor]:
        """Return text and audio of a greedy answer. A truncated answer speaks one token less than it writes."""
        given = self.given(model, chat)
        written, sound = self.network.generate(
            **given,
            **self._how(chat.sampling.max_tokens + 1),
            talker_max_new_tokens=frames + 1,
            talker_do_sample=False,
            speaker=speaker,
        )
        return self._text(written, given, chat), sound[0, 0]

    @torch.inference_mode()
    def write(self, model: Any, chat: Any) -> list[int]:
        """Return the text of a greedy answer."""
        given = self.given(model, chat)
        how = self._how(chat.sampling.max_tokens)
        return self._text(self.network.generate(**given, **how, return_audio=False), given, chat)

    def _how(self, most: int) -> dict[str, Any]:
        return {
            "thinker_max_new_tokens": most,
            "thinker_eos_token_id": IDS["<|im_end|>"],
            "thinker_do_sample": False,
        }

    @staticmethod
    def _text(written: torch.Tensor, given: dict[str, Any], chat: Any) -> list[int]:
        text = written[0, given["input_ids"].shape[1] :].tolist()[: chat.sampling.max_tokens]
        return text[:-1] if text[-1:] == [IDS["<|im_end|>"]] else text
