"""Tiny SmolVLM with random weights in the published layout, and the outputs of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE, get_image_prompt_string

from mstar.requests import ChatRequest, ImageInput, Sampling

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
NAMES = ["<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
NAMES += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
MERGES = [("Ġ", "a"), ("Ċ", "U"), (":", "Ġ"), ("e", "r"), ("Ċ", "Ċ")]
"""Some merge characters across the parts of a message."""
IDS = {name: number for number, name in enumerate([*BYTES, *map("".join, MERGES), *NAMES])}
VOCABULARY = 320
TILE, PATCH, EDGE = 32, 8, 64
PLACES = (TILE // PATCH // 2) ** 2
"""Placeholder of a tile in a text."""


def config(width: int = 32, layers: int = 2, **vision: Any) -> SmolVLMConfig:
    """Config of the tiny model."""
    heads = {"num_attention_heads": 4, "max_position_embeddings": 4096}
    text = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers, **heads}
    text |= {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "pad_token_id": 0, "model_type": "llama"}
    sight = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sight |= {"image_size": TILE, "patch_size": PATCH, **vision}
    ids = {"image_token_id": IDS["<image>"], "scale_factor": 2}
    return SmolVLMConfig(text_config=text, vision_config=sight, tie_word_embeddings=False, **ids)


def save(folder: Path, *, edge: int = EDGE, ends: bool = True, kind: str = "SmolVLM", **shape: Any) -> str:
    """Save the checkpoint, and return its folder. Its answers can be endless. Older ones are named Idefics3."""
    torch.manual_seed(0)
    network = SmolVLMForConditionalGeneration(config(**shape)).eval()
    for weight in network.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight[0].numel() ** -0.5)
    if not ends:
        network.lm_head.weight.data[IDS["<end_of_utterance>"]] = 0  # other tokens are likelier
    network.save_pretrained(folder)
    config_text = (folder / "config.json").read_text().replace("SmolVLM", kind).replace('"smolvlm', f'"{kind.lower()}')
    (folder / "config.json").write_text(config_text)
    _tokenizer().save(str(folder / "tokenizer.json"))
    tile = network.config.vision_config.image_size
    how = {"image_processor_type": f"{kind}ImageProcessor", "do_image_splitting": True, "resample": 1}
    how |= {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": tile}, "rescale_factor": 1 / 255}
    how |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(how))
    return str(folder)


def _tokenizer() -> Tokenizer:
    words = {name: number for name, number in IDS.items() if name not in NAMES}
    made = Tokenizer(models.BPE(vocab=words, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    return made


class Reference:
    """transformers' own model, template and image processor, one request at a time."""

    def __init__(self, folder: str) -> None:
        self.network = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
        named = json.loads(Path(folder, "preprocessor_config.json").read_text())["image_processor_type"]
        self.processor = getattr(transformers, f"{named}Pil").from_pretrained(folder)
        vision = self.network.config.vision_config
        self.places = (vision.image_size // vision.patch_size // 2) ** 2

    def given(self, chat: ChatRequest) -> dict[str, Any]:
        """Apply the processor's template. The processor itself needs num2words, for videos."""
        turns = [{"role": turn.role, "content": [_content(part) for part in turn.parts]} for turn in chat.messages]
        text = self.tokenizer.apply_chat_template(
            turns, chat_template=DEFAULT_CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
        )
        pictures = [part.pixels for turn in chat.messages for part in turn.parts if isinstance(part, ImageInput)]
        given = dict[str, Any]()
        if pictures:
            how = {"return_tensors": "pt", "return_row_col_info": True, "input_data_format": "channels_last"}
            made = self.processor([pictures], **how)
            names = ("<fake_token_around_image>", "<image>", "<global-img>")
            signs = [
                get_image_prompt_string(*size, self.places, *names)
                for size in zip(made["rows"][0], made["cols"][0], strict=True)
            ]
            first, *others = text.split("<image>")
            text = first + "".join(sign + other for sign, other in zip(signs, others, strict=True))
            given = {name: made[name] for name in ("pixel_values", "pixel_attention_mask")}
        tokens = self.tokenizer(text, return_tensors="pt")["input_ids"]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **given}

    @torch.inference_mode()
    def write(self, chat: ChatRequest) -> list[int]:
        """Return the tokens of a greedy answer."""
        return self._generate(self.given(chat), chat.sampling)[0]

    @torch.inference_mode()
    def write_all(self, chats: Sequence[ChatRequest]) -> list[list[int]]:
        """Return the tokens of several answers as one batch, with equal tiles and sampling."""
        all_given = [self.given(chat) for chat in chats]
        longest = max(given["input_ids"].shape[1] for given in all_given)
        joined = {name: list[torch.Tensor]() for name in all_given[0]}
        for given in all_given:
            for name, value in given.items():
                fill = (longest - value.shape[1], 0) if value.ndim == 2 else (0, 0)
                joined[name].append(torch.nn.functional.pad(value, fill))
        return self._generate({name: torch.cat(values) for name, values in joined.items()}, chats[0].sampling)

    def _generate(self, given: dict[str, Any], sampling: Sampling) -> list[list[int]]:
        how = {
            "max_new_tokens": sampling.max_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "do_sample": False,
        }
        written = self.network.generate(**given, **how, eos_token_id=IDS["<end_of_utterance>"], pad_token_id=0)
        answers = written[:, given["input_ids"].shape[1] :].tolist()
        return [list(takewhile(lambda token: token != IDS["<end_of_utterance>"], answer)) for answer in answers]


def _content(part: Any) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
