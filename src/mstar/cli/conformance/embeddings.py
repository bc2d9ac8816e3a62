"""Embeddings, as people call them: as numbers, and as bytes, which is what the official client asks for by itself."""

from __future__ import annotations

from mstar.cli.conformance.target import Check, ConformanceTarget, require

PATH = "/v1/embeddings"
TEXTS = ["a river", "many stones"]


def _floats(site: ConformanceTarget) -> str:
    data = site.openai.embeddings.create(model=site.model, input=TEXTS, encoding_format="float").data
    require([one.index for one in data] == [0, 1], f"{len(data)} vectors came")
    require(data[0].embedding != data[1].embedding, "two texts have the same vector")
    return f"{len(data[0].embedding)} numbers"


def _base64(site: ConformanceTarget) -> str:
    plain = site.openai.embeddings.create(model=site.model, input=TEXTS[0], encoding_format="float").data[0].embedding
    coded = site.openai.embeddings.create(model=site.model, input=TEXTS[0]).data[0].embedding
    require(all(abs(a - b) < 1e-6 for a, b in zip(plain, coded, strict=True)), "as bytes it is another vector")
    return ""


CHECKS = (Check(PATH, "float", _floats), Check(PATH, "base64", _base64))
