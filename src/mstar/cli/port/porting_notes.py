"""PORTING.md: what a port consists of, and what needs a hand, with file and line of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mstar.cli.port.reference import Part, Reference

_PROPOSALS = (
    ("Attention", "part of its block"),
    ("Embedding", "part of the component that reads it"),
    ("VisionModel", "`Encoder` of `mstar.nn.encoder`: results cached by content"),
    ("VisionTransformer", "`Encoder` of `mstar.nn.encoder`: results cached by content"),
    ("AudioEncoder", "`Encoder` of `mstar.nn.encoder`"),
    ("Encoder", "`Encoder` of `mstar.nn.encoder`, or an op of its own"),
    ("HifiGan", "`Codec` of `mstar.nn.audio.codec` if it can decode window by window, else an op"),
    ("Mimi", "`Codec` of `mstar.nn.audio.codec`"),
    ("Decoder", "`CausalLM` if it attends to itself only; `EncoderDecoder` of `mstar.nn.lm.encoder_decoder` otherwise"),
    ("LMHead", "part of the decoder"),
    ("Projector", "an op of the encoder before it"),
    ("Connector", "an op of the encoder before it"),
    ("Linear", "part of the component before it"),
    ("TextModel", "`CausalLM` of `mstar.nn.lm.causal_lm`"),
    ("Model", "`CausalLM` if it writes tokens, else an op"),
)
"""Ending of a module's class, and the component that it can become."""


def describe(reference: Reference, network: Any, module: str, why_not: str) -> str:
    """The notes as Markdown. `why_not` says why no model was written; empty if one was."""
    import transformers

    sections = [
        f"# Port of {reference.name}",
        f"From `{reference.place}` of transformers {transformers.__version__}, by "
        f"`mstar port transformers:{reference.name} {module}`. Sizes are those of the tiny config.",
        "## No model was written" if why_not else "## What was written",
        _not_written(reference, why_not) if why_not else _written(module),
        "## Parts with weights",
        _table(("part", "class", "parameters", "reference", "component"), map(_part_row, reference.parts(network))),
        "## Order of calls in `forward`",
        "\n".join(f"{number}. `self.{name}` (`{place}`)" for number, (name, place) in _numbered(reference, network))
        or "It calls no part directly: see the base class.",
        "## Inputs of `forward`",
        ", ".join(f"`{name}`" for name in reference.inputs if name not in ("self", "kwargs")),
        "## Needs a hand",
        "\n".join(f"- {finding.what} (`{finding.place}`)" for finding in reference.findings(network))
        or "Nothing was found that a call leaves behind or draws at random.",
        "Then follow `skills/add-a-model/SKILL.md`, from step 4.",
    ]
    return "\n\n".join(sections) + "\n"


def _written(module: str) -> str:
    return (
        f"- `{module}.py`: the model; `mstar check {module}.py` traces its walk.\n"
        f"- `tiny_{module}.py`: the tiny config, and `weights/` made with it.\n"
        f"- `test_{module}.py`: equal to transformers, and served as it runs. `python -m pytest` runs it.\n\n"
        "By hand: the tokenizer or processor, the request type of an endpoint, batches of a one-pass network "
        "(`@op(batch=...)`), and the published weights."
    )


def _not_written(reference: Reference, why_not: str) -> str:
    return (
        f"{reference.name}: {why_not}. Start with `mstar new`, make a component of each part below, and write the "
        f"loops of the class (`{reference.place}`) as a walk: a state for each cache, a `Stream` where two parts run "
        "at once."
    )


def _numbered(reference: Reference, network: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(reference.calls(network), 1)


def _part_row(part: Part) -> tuple[str, ...]:
    proposal = next((text for ending, text in _PROPOSALS if part.class_name.endswith(ending)), "an op")
    return f"`{part.path}`", part.class_name, f"{part.parameters:,}", f"`{part.place}`", proposal


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | map[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
