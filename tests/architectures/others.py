"""Text encoders and chat about images of transformers, and pipelines of diffusers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mstar.cli.port.tiny_config import VOCABULARY, tiny_fields
from mstar.requests import ChatRequest, EmbeddingRequest, ImageInput, ImageRequest, Message, Sampling, VideoRequest
from tests.architectures.architecture import CHAT, EMBEDDINGS, IMAGES, RERANK, VIDEOS, Architecture
from tests.architectures.speech import must_be_refused, refused
from tests.models.diffusion import diffusion_tiny
from tests.models.sentence_transformer.minilm import library_vectors
from tests.models.smolvlm import smolvlm_tiny

TEXTS = ["a b c", "d", "e f a b c d e f g"]


# ---------------------------------------------------------------- embeddings
def save_encoder(folder: Path, name: str) -> Path:
    """Save a text encoder with a tokenizer of words."""
    network_class: Any = getattr(t, name)
    torch.manual_seed(0)
    network = network_class(network_class.config_class(**tiny_fields(network_class.config_class))).eval()
    network.save_pretrained(folder)
    words = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abcdefg"])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    t.PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **marks
    ).save_pretrained(folder)
    assert len(words) < VOCABULARY
    return folder


def compare_vectors(model: Any, folder: Path) -> str:
    """Mean of the hidden states of three texts."""
    vectors, _ = model.run(EmbeddingRequest(tuple(TEXTS))).result
    difference = float(np.abs(vectors.numpy() - library_vectors(TEXTS, folder, is_normalized=False)).max())
    assert difference < 1e-5, f"vectors differ by {difference:.1e}"
    return f"{len(TEXTS)} vectors within 0.00001"


# ---------------------------------------------------------------- chat about images
def compare_vision(model: Any, folder: str) -> str:
    """Tokens of an answer about an image."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    chat = ChatRequest((Message("user", (ImageInput(pixels), "What is it?")),), Sampling(max_tokens=8))
    tokens = [int(emission.value) for emission in model.run(chat).emissions]
    assert tokens == smolvlm_tiny.Reference(folder).write(chat)
    return f"{len(tokens)} tokens about an image"


# ---------------------------------------------------------------- images and videos
def compare_image(length: int) -> Callable[[Any, Any], str]:
    """Compares an image with the pipeline, which reads prompts of this length."""

    def compare(model: Any, pipeline: Any) -> str:
        drawing = ImageRequest("a red cat", 32, 32, 3, 4.0, seed=7)
        (image,) = model.run(drawing).emissions
        expected = diffusion_tiny.reference_image(pipeline, drawing, length)[1]
        return _close_pixels(image.value, expected)

    return compare


def compare_video(model: Any, pipeline: Any) -> str:
    """Frames of a video."""
    filming = VideoRequest("a red cat", 1.0, 32, 32, seed=7, steps=3, guidance=4.0)
    model.fps = diffusion_tiny.FPS
    return _close_pixels(_frames(model, filming), diffusion_tiny.reference_video(pipeline, filming)[1])


def compare_ltx(model: Any, pipeline: Any) -> str:
    """Frames of a video at the frame rate of the pipeline."""
    filming = VideoRequest("a red cat", 9 / model.fps, 64, 64, seed=7, steps=3, guidance=4.0)
    return _close_pixels(_frames(model, filming), diffusion_tiny.reference_ltx(pipeline, filming, fps=model.fps)[1])


def _frames(model: Any, filming: VideoRequest) -> np.ndarray:
    return np.concatenate([np.asarray(one.value) for one in model.run(filming).emissions])


def _close_pixels(actual: Any, expected: np.ndarray) -> str:
    pixels = np.asarray(actual, np.int16)
    assert pixels.shape == expected.shape, f"{pixels.shape} instead of {expected.shape}"
    difference = int(np.abs(pixels - np.round(expected * 255).astype(np.int16)).max())
    assert difference <= 1, f"pixels differ by {difference} of 255"
    return f"{pixels.size // 3} pixels within 1 of 255"


def _image_to_video(folder: Path) -> Any:
    """The same networks as a pipeline that starts from an image or not."""
    pipeline = diffusion_tiny.save_wan(folder)
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("WanPipeline", "WanImageToVideoPipeline"))
    return pipeline


# ---------------------------------------------------------------- not supported
def _other_pipeline(name: str, endpoint: str) -> Architecture:
    def save(folder: Path) -> Path:
        (folder / "model_index.json").write_text(json.dumps({"_class_name": name}))
        return folder

    return Architecture(name, endpoint, save, must_be_refused, "diffusers")


_ENCODERS = ("BertModel", "RobertaModel", "XLMRobertaModel", "MPNetModel", "DistilBertModel")


def _encoder(name: str) -> Architecture:
    return Architecture(
        name, EMBEDDINGS, lambda folder: save_encoder(folder, name), compare_vectors, is_fast=name == "MPNetModel"
    )


OTHER_ARCHITECTURES = (
    *map(_encoder, _ENCODERS),
    Architecture("SmolVLMForConditionalGeneration", CHAT, smolvlm_tiny.save, compare_vision),
    Architecture(
        "Idefics3ForConditionalGeneration",
        CHAT,
        lambda folder: smolvlm_tiny.save(folder, kind="Idefics3"),
        compare_vision,
    ),
    refused("LlavaForConditionalGeneration", CHAT),
    refused("Qwen2VLForConditionalGeneration", CHAT),
    refused("Qwen2_5_VLForConditionalGeneration", CHAT),
    refused("PaliGemmaForConditionalGeneration", CHAT),
    refused("T5ForConditionalGeneration", CHAT),
    refused("BartForConditionalGeneration", CHAT),
    refused("BertForSequenceClassification", RERANK),
    Architecture("StableDiffusion3Pipeline", IMAGES, diffusion_tiny.save_sd3, compare_image(256), "diffusers"),
    Architecture("FluxPipeline", IMAGES, diffusion_tiny.save_flux, compare_image(512), "diffusers", is_fast=True),
    Architecture("WanImageToVideoPipeline", VIDEOS, _image_to_video, compare_video, "diffusers"),
    Architecture("LTXPipeline", VIDEOS, diffusion_tiny.save_ltx, compare_ltx, "diffusers", is_fast=True),
    _other_pipeline("StableDiffusionPipeline", IMAGES),
    _other_pipeline("LTXConditionPipeline", VIDEOS),
)
