"""Recognizes a folder of diffusers by the pipeline in its model_index.json."""

from __future__ import annotations

from pathlib import Path

from mstar.cli.checkpoints.refusal import read_json, unsupported

PIPELINES = {
    "StableDiffusion3Pipeline": "sd3",
    "FluxPipeline": "flux",
    "LTXPipeline": "ltx",
    "LTXImageToVideoPipeline": "ltx",
    "WanPipeline": "wan",
    "WanImageToVideoPipeline": "wan",
}
"""Installed model of each pipeline class."""
_NEAREST = {"LTX": "LTXPipeline (ltx, video)", "Video": "WanPipeline (wan, video)"}
"""Pipeline that is nearest to others with this word in their name."""


def recognize(path: Path) -> str | None:
    """Name of the model that serves a diffusers folder; None if it is none. Raises LoadError for other pipelines."""
    index = path / "model_index.json"
    if not index.is_file():
        return None
    pipeline = read_json(index).get("_class_name")
    if pipeline in PIPELINES:
        return PIPELINES[pipeline]
    near = (nearest for word, nearest in _NEAREST.items() if word in str(pipeline))
    nearest = next(near, "StableDiffusion3Pipeline (sd3, images)")
    raise unsupported(index, f"the pipeline {pipeline}", nearest, PIPELINES)
