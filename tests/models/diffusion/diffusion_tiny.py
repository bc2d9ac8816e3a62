"""Tiny random diffusion models in the diffusers layout, and the outputs of the diffusers pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers as d
import numpy as np
import torch
import transformers as t
from diffusers.pipelines.wan import pipeline_wan, pipeline_wan_i2v
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mstar.requests import ImageRequest, VideoRequest

WORDS = ["a", "red", "blue", "green", "cat", "dog", "runs", "on", "the", "moon", "slowly", "and", "jumps"]
FPS = 8.0
SD3 = {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "sample_size": 16}
LTX = {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "cross_attention_dim": 32}
WAN = {"num_layers": 2, "attention_head_dim": 12, "num_attention_heads": 2, "ffn_dim": 32}


def _tokenizer(begins: str = "") -> Any:
    names = ["<pad>", "</s>", "<unk>", "<s>", *WORDS]
    words = {word: number for number, word in enumerate(names)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("<s>", 3), ("</s>", 1)]
    made.post_processor = processors.TemplateProcessing(single=f"{begins}$A </s>", special_tokens=special)
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    return t.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=77, **marks)


def _clip(width: int) -> Any:
    sizes = {"hidden_size": width, "projection_dim": width, "intermediate_size": 37}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    return t.CLIPTextModelWithProjection(t.CLIPTextConfig(**sizes, bos_token_id=3, eos_token_id=1, pad_token_id=0))


def _t5(kind: Any, config: Any) -> Any:
    sizes = {"vocab_size": 64, "d_model": 48, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
    return kind(config(**sizes, feed_forward_proj="gated-gelu"))


def _random(*networks: Any) -> None:
    """Scale weights so that every input matters: many are initialized to nearly zero."""
    for network in networks:
        for name, weight in network.named_parameters():
            if weight.ndim > 1 and "scale_shift" not in name:
                fan = weight[0].numel() if "embed" not in name else 2 * weight.shape[-1]
                torch.nn.init.normal_(weight, std=(3.0 if "attn2" in name else 1.2) * fan**-0.5)
            elif weight.ndim == 1 and name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.05)
        network.eval()


def _image_vae() -> Any:
    return d.AutoencoderKL(
        sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.0609,
        scaling_factor=1.5305,
    )


def save_sd3(folder: Path, **shape: Any) -> Any:
    """Save a Stable Diffusion 3, and return the diffusers pipeline of the same networks."""
    torch.manual_seed(0)
    shape = SD3 | shape
    width = shape["attention_head_dim"] * shape["num_attention_heads"]
    transformer = d.SD3Transformer2DModel(
        **shape,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        joint_attention_dim=48,
        caption_projection_dim=width,
        pooled_projection_dim=40,
        pos_embed_max_size=48,
    )
    vae = _image_vae()
    clips = [_clip(16), _clip(24)]
    t5 = _t5(t.T5EncoderModel, t.T5Config)
    _random(transformer, vae, *clips, t5)
    pipeline = d.StableDiffusion3Pipeline(
        transformer=transformer,
        vae=vae,
        scheduler=d.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=clips[0],
        text_encoder_2=clips[1],
        text_encoder_3=t5,
        tokenizer=_tokenizer("<s> "),
        tokenizer_2=_tokenizer("<s> "),
        tokenizer_3=_tokenizer(),
    )
    pipeline.save_pretrained(folder)
    return pipeline


def save_flux(folder: Path, *, has_guidance: bool = True) -> Any:
    """Save a FLUX like FLUX.1-dev, or FLUX.1-schnell without guidance; return the pipeline of the same networks."""
    torch.manual_seed(0)
    transformer = d.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=48,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=has_guidance,
    )
    sizes = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    clip = t.CLIPTextModel(t.CLIPTextConfig(**sizes, **ids, vocab_size=64, projection_dim=32))
    vae, t5 = _image_vae(), _t5(t.T5EncoderModel, t.T5Config)
    _random(transformer, vae, clip, t5)
    pipeline = d.FluxPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=has_guidance, shift=3.0),
        text_encoder=clip,
        text_encoder_2=t5,
        tokenizer=_tokenizer("<s> "),
        tokenizer_2=_tokenizer(),
    )
    pipeline.save_pretrained(folder)
    return pipeline


def save_wan(folder: Path, *, is_old: bool = False) -> Any:
    """Save a Wan like Wan2.2-TI2V-5B or Wan2.1-T2V, and return the diffusers pipeline of the same networks."""
    torch.manual_seed(0)
    draw, channels = np.random.default_rng(0), 16 if is_old else 48
    transformer = d.WanTransformer3DModel(
        **WAN, patch_size=(1, 2, 2), in_channels=channels, out_channels=channels, text_dim=48, rope_max_seq_len=32
    )
    new = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
    vae = d.AutoencoderKLWan(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=channels,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=draw.normal(0, 0.3, channels).tolist(),
        latents_std=draw.uniform(0.5, 2, channels).tolist(),
        **({} if is_old else new),
    )
    umt5 = _t5(t.UMT5EncoderModel, t.UMT5Config)
    _random(transformer, vae, umt5)
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}
    pipeline = d.WanPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=d.UniPCMultistepScheduler(**flow),
        text_encoder=umt5,
        tokenizer=_tokenizer(),
        expand_timesteps=not is_old,
    )
    pipeline.save_pretrained(folder)
    if is_old:
        file = folder / "vae" / "config.json"  # Wan2.1 was published before its config had these keys
        config = json.loads(file.read_bytes())
        file.write_text(json.dumps({name: one for name, one in config.items() if not name.startswith("scale_factor")}))
    return pipeline


def save_ltx(folder: Path, *, is_conditioned: bool = False) -> Any:
    """Save an LTX-Video, or one like 0.9.1 with a decoder that is conditioned on a timestep and draws noise."""
    torch.manual_seed(0)
    transformer = d.LTXVideoTransformer3DModel(**LTX, in_channels=8, out_channels=8, caption_channels=48)
    blocks, layers = {"block_out_channels": (8,) * 4}, {"layers_per_block": (1,) * 5}
    vae = d.AutoencoderKLLTXVideo(
        latent_channels=8,
        **blocks,
        **{f"decoder_{name}": value for name, value in (blocks | layers).items()},
        **layers,
        scaling_factor=0.8,
        timestep_conditioning=is_conditioned,
        decoder_inject_noise=(is_conditioned,) * 4 + (False,),
    )
    vae.latents_mean.normal_(0, 0.3)
    vae.latents_std.uniform_(0.5, 2)
    t5 = _t5(t.T5EncoderModel, t.T5Config)
    _random(transformer, vae, t5)
    shifts = {"base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "shift_terminal": 0.1}
    pipeline = d.LTXPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **shifts),
        text_encoder=t5,
        tokenizer=_tokenizer(),
    )
    pipeline.save_pretrained(folder)
    return pipeline


# ---------------------------------------------------------------- diffusers outputs
def _pipeline_arguments(ask: ImageRequest | VideoRequest) -> dict[str, Any]:
    return {
        "prompt": ask.prompt,
        "negative_prompt": ask.negative_prompt,
        "width": ask.width,
        "height": ask.height,
        "num_inference_steps": ask.steps,
        "guidance_scale": ask.guidance,
        "generator": torch.Generator().manual_seed(ask.seed),
    }


class Latents:
    """Step callback that records the latents."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, _: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Record the latents after a step."""
        self.seen.append(given["latents"][0].clone())
        return {}


def reference_image(pipeline: Any, drawing: ImageRequest, length: int = 16) -> tuple[list[torch.Tensor], np.ndarray]:
    """Return the latents after each step, and the image, [height, width, 3] from 0 to 1."""
    pipeline.set_progress_bar_config(disable=True)
    keep = Latents()
    made = pipeline(
        **_pipeline_arguments(drawing), max_sequence_length=length, output_type="np", callback_on_step_end=keep
    )
    return keep.seen, made.images[0]


def reference_video(pipeline: Any, filming: VideoRequest) -> tuple[torch.Tensor, np.ndarray]:
    """Return the last latents of a video, and its frames, [frames, height, width, 3] from 0 to 1."""
    more: dict[str, Any] = {"num_frames": int(filming.seconds * FPS) // 4 * 4 + 1, "output_type": "np"}
    if filming.source is not None:
        parts = {name: part for name, part in pipeline.components.items() if name != "transformer_2"}
        pipeline = d.WanImageToVideoPipeline(**parts, expand_timesteps=True)
        more["image"] = Image.fromarray(filming.source.pixels)
    pipeline.set_progress_bar_config(disable=True)
    keep = Latents()
    with patch.object(pipeline_wan_i2v, "prompt_clean", pipeline_wan.prompt_clean):  # it lacks an import guard
        made = pipeline(**_pipeline_arguments(filming), **more, callback_on_step_end=keep)
    return keep.seen[-1], made.frames[0]


def reference_ltx(
    pipeline: Any, filming: VideoRequest, *, fps: float = FPS, **decode: float
) -> tuple[torch.Tensor, np.ndarray]:
    """Return the last latents of an LTX-Video, [channels, frames, height, width], and its frames as above."""
    more: dict[str, Any] = {"num_frames": int(filming.seconds * fps) // 8 * 8 + 1, "frame_rate": fps, **decode}
    if filming.source is not None:
        pipeline = d.LTXImageToVideoPipeline(**pipeline.components)
        more["image"] = Image.fromarray(filming.source.pixels)
    pipeline.set_progress_bar_config(disable=True)
    keep, given, run = Latents(), _pipeline_arguments(filming), pipeline.vae.decode

    def decode_seeded(*args: Any, **kwargs: Any) -> Any:
        torch.set_rng_state(given["generator"].get_state())  # its layers draw from the global generator
        return run(*args, **kwargs)

    with patch.object(pipeline.vae, "decode", decode_seeded), torch.random.fork_rng(devices=[]):
        frames = pipeline(**given, **more, output_type="np", callback_on_step_end=keep).frames[0]
    size = (-1, filming.height // 32, filming.width // 32)
    return keep.seen[-1].mT.unflatten(1, size), frames


def expected_ltx(latents: torch.Tensor, frames: np.ndarray) -> list[np.ndarray]:
    """Return what the model of LTX_FILE emits for a result of diffusers."""
    count = latents.shape[1]
    pixels = np.concatenate([*[frames[:1]] * 7, frames]).reshape(count, -1)
    return [np.concatenate([latents[:, step].numpy().ravel(), pixels[step]]) for step in range(count)]


# ---------------------------------------------------------------- models that emit floats
SD3_FILE = """
from mstar import Float, Tensor, op, stacked
from mstar.models.diffusion.sd3 import StableDiffusion3
from mstar.models.diffusion.text_encoders import T5
from mstar.models.diffusion.vae import ImageVae


class Short(T5):
    MAX_TOKENS = 16


class Open(ImageVae):
    @op(batch=stacked)
    def decode_image(self, latents: Float[Tensor, "C H W"]) -> Float[Tensor, "N"]:
        import torch

        return torch.cat([latents.flatten(1), (self.decode_pixels(latents) / 2 + 0.5).clamp(0, 1).flatten(1)], 1)


class Shown(StableDiffusion3):
    def __init__(self):
        super().__init__({folder!r})
        self.t5, self.vae = Short(self.checkpoint, "_3"), Open(self.checkpoint)
"""
WAN_FILE = """
from mstar import Float, Tensor, op
from mstar.models.diffusion.vae import DecoderCache, VideoVae
from mstar.models.diffusion.wan import Wan


class Open(VideoVae):
    @op
    def decode_frame(self, latents: Float[Tensor, "C F H W"], step: int, cache: DecoderCache) -> Float[Tensor, "N"]:
        import torch

        pixels = self.decode_pixels(latents, step, cache)
        return torch.cat([latents[:, step].flatten(), (pixels / 2 + 0.5).clamp(0, 1).flatten()])


class Shown(Wan):
    def __init__(self):
        super().__init__({folder!r}, fps={fps})
        self.vae = Open(self.checkpoint)
"""
LTX_FILE = """
from mstar import Float, Tensor, op
from mstar.models.diffusion.ltx import Ltx
from mstar.models.diffusion.ltx_vae import LtxVae
from mstar.models.diffusion.params import DiffusionParams


class Open(LtxVae):
    @op
    def decode_video(
        self, latents: Float[Tensor, "C F H W"], known: Float[Tensor, "C K H W"], params: DiffusionParams
    ) -> Float[Tensor, "F N"]:
        import torch

        # each latent frame is eight frames, the first eight times the same
        pixels, count = (self.decode_pixels(latents, known, params) / 2 + 0.5).clamp(0, 1), latents.shape[1]
        pixels = torch.cat([*[pixels[:1]] * 7, pixels]).reshape(count, -1)
        return torch.cat([latents.transpose(0, 1).flatten(1), pixels], 1)

    @op
    def take_frames(self, video: Float[Tensor, "F N"], step: int) -> Float[Tensor, "N"]:
        return video[step]


class Shown(Ltx):
    def __init__(self):
        super().__init__({folder!r}, fps={fps})
        self.vae = Open(self.checkpoint, self.vae._timestep, self.vae._noise_scale)
"""
"""Models that emit latents and pixels as floats instead of bytes. T5 reads fewer tokens here, for speed."""


def expected_emissions(latents: torch.Tensor, pixels: np.ndarray) -> np.ndarray:
    """Return what such a model emits for a result of diffusers."""
    return np.concatenate([latents.numpy().ravel(), pixels.ravel()])
