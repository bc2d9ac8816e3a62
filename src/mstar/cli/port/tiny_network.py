"""Tiny network: an instance of a reference with random weights, its example inputs, and what it gives for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar.cli.port.reference import Reference
from mstar.cli.port.tiny_config import VOCABULARY, tiny_fields
from mstar.errors import LoadError

_SEED = 0
_OUTPUTS = ("logits", "last_hidden_state", "image_embeds", "text_embeds", "embeddings")
"""Names of a network's result. The first one that an output has is served."""
_TOKENS = 11


@dataclass(frozen=True, slots=True)
class Sample:
    """One input of a network that gives its result in one call, and that result."""

    input: str
    """Name of the parameter of `forward`."""
    example: Any
    """Without the dimension of the batch."""
    output: str
    """Name of the field of the result."""
    result: Any


def make_tiny(reference: Reference, fields: Mapping[str, Any] | None = None) -> tuple[Any, Mapping[str, Any]]:
    """A network with random weights, and the fields of its config. Raises LoadError if they do not fit together."""
    import torch

    fields = tiny_fields(reference.config_class) if fields is None else fields
    torch.manual_seed(_SEED)
    try:
        network = reference.network_class(reference.config_class(**fields)).eval()
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise LoadError(
            f"{reference.name}: the tiny config {dict(fields)} makes no network: {type(error).__name__}: {reason}\n"
            f"  fix: see {reference.place} for what fits together, and start with `mstar new`"
        ) from error
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:  # the library's weights are so small that results would hardly depend on the input
                weight.mul_(4)
    return network, fields


def save(network: Any, folder: Path) -> None:
    """Save it as `save_pretrained` does."""
    network.save_pretrained(folder)


def find_sample(network: Any) -> Sample | None:
    """An input that `forward` accepts alone, with its result; None if there is none."""
    import torch

    name = network.main_input_name
    for example in _examples(name, network.config):
        try:
            with torch.no_grad():
                output = network(**{name: example[None]})
        except Exception:  # noqa: BLE001 - the next shape is tried
            continue
        field = next((one for one in _OUTPUTS if torch.is_tensor(getattr(output, one, None))), None)
        if field is not None:
            return Sample(name, example, field, getattr(output, field)[0])
    return None


def _examples(name: str, config: Any) -> list[Any]:
    """Inputs of the shapes that networks with this input have."""
    import torch

    generator = torch.Generator().manual_seed(_SEED)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    if name == "input_ids":
        vocabulary = getattr(config.get_text_config(), "vocab_size", None) or VOCABULARY
        return [torch.randint(3, vocabulary - 8, (_TOKENS,), generator=generator)]
    if name == "pixel_values":
        vision = getattr(config, "vision_config", None) or config
        size, channels = getattr(vision, "image_size", 32), getattr(vision, "num_channels", 3)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return [noise(channels, height, width)]
    if name == "input_values":
        return [noise(4000), noise(1, 4000)]
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 80
        return [noise(120, bins), noise(bins, 3000), noise(120, 160), noise(120, 80)]
    return []
