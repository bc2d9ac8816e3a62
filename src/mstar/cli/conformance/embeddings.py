"""Conformance checks of embeddings: as floats, and as base64, the default of the official client."""

from __future__ import annotations

from mstar.cli.conformance.target import Check, ConformanceTarget, require

PATH = "/v1/embeddings"
TEXTS = ["a river", "many stones"]


def _floats(target: ConformanceTarget) -> str:
    data = target.openai.embeddings.create(model=target.model, input=TEXTS, encoding_format="float").data
    require([item.index for item in data] == [0, 1], f"{len(data)} embeddings, expected 2")
    require(data[0].embedding != data[1].embedding, "two texts have the same embedding")
    return f"{len(data[0].embedding)} numbers"


def _base64(target: ConformanceTarget) -> str:
    plain = (
        target.openai.embeddings.create(model=target.model, input=TEXTS[0], encoding_format="float").data[0].embedding
    )
    decoded = target.openai.embeddings.create(model=target.model, input=TEXTS[0]).data[0].embedding
    require(all(abs(a - b) < 1e-6 for a, b in zip(plain, decoded, strict=True)), "base64 and float embeddings differ")
    return ""


CHECKS = (Check(PATH, "float", _floats), Check(PATH, "base64", _base64))
