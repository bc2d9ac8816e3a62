"""Section `families`: installed models answer a request on the device as on the CPU, with their real weights.

Rounding differs between devices, so that a sampled or a long answer can differ after some tokens although nothing is
wrong. The rows say how much was equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np

from mstar.cli.gpu_report.records import Row
from mstar.cli.gpu_report.sections import SectionOptions
from mstar.cli.models import default_weights_state
from mstar.errors import MstarError
from mstar.requests import (
    AudioInput,
    ChatRequest,
    EmbeddingRequest,
    ImageRequest,
    Message,
    Sampling,
    SpeechRequest,
    TranscriptionRequest,
    VideoRequest,
)
from mstar.walk.load import ENTRY_POINT_GROUP, load_model
from mstar.walk.model import Model

MAX_TOKENS = 16
MIN_EQUAL = 0.9
"""Share of equal values of an answer from which it counts as the same."""
MAX_DIFFERENCE = 0.02
"""Maximum difference of equal numbers, relative to the largest of them."""


def sample_requests() -> dict[type, Any]:
    """A short request of each type."""
    seconds = np.arange(2 * 16_000) / 16_000
    sweep = (0.3 * np.sin(2 * np.pi * (200 + 300 * seconds) * seconds)).astype(np.float32)
    return {
        ChatRequest: ChatRequest(
            (Message("user", ("What is the capital of France?",)),), Sampling(max_tokens=MAX_TOKENS)
        ),
        SpeechRequest: SpeechRequest("Good morning, and welcome.", seed=1),
        TranscriptionRequest: TranscriptionRequest(AudioInput(sweep, 16_000)),
        EmbeddingRequest: EmbeddingRequest(("The sea is calm today.",)),
        ImageRequest: ImageRequest("a red cat on a chair", seed=1, steps=2),
        VideoRequest: VideoRequest("a red cat on a chair", seconds=0.5, seed=1, steps=2),
    }


def rows(options: SectionOptions) -> Iterator[Row]:
    """Compare each installed model."""
    for name in options.models or sorted(metadata.entry_points(group=ENTRY_POINT_GROUP).names):
        try:
            yield _compare(name, options.device, may_download=bool(options.models))
        except MstarError as error:
            yield Row(what=name, state="skipped", note=str(error).splitlines()[0])
        except Exception as error:  # noqa: BLE001 - the other models are tried too
            yield Row(what=name, state="failed", note=f"{type(error).__name__}: {error}")


def _compare(name: str, device: str, *, may_download: bool) -> Row:
    from mstar.server.state import ServedModel

    model = load_model(name)
    state, fix = default_weights_state(name, model)
    if fix or (state.startswith("hub:") and not may_download):
        return Row(what=name, state="skipped", note=f"its weights are not installed: {state}; name it with --models")
    for component in model.components().values():
        for file in component.weights:
            file.path()
    accepted = ServedModel.from_model(name, model).accepted_types
    request = next((sample for kind, sample in sample_requests().items() if kind in accepted), None)
    if request is None:
        return Row(what=name, state="skipped", note="its requests have a type of their own")
    if not any(component.runs_on_device for component in model.components().values()):
        return Row(what=name, state="skipped", note="its components run on the CPU only")
    expected, cpu_s = _answer(model, request)
    actual, device_s = _answer(_place(load_model(name), device), request)
    equal, count = _count_equal(actual, expected)
    share = equal / count if count else 0.0
    return Row(
        what=name,
        state="ok" if share >= MIN_EQUAL else "failed",
        value=share,
        unit=f"of {count} values are equal",
        note=f"{type(request).__name__}, {device_s:.1f} s with loading ({cpu_s:.1f} s on the CPU)",
    )


def _place(model: Model, device: str) -> Model:
    """Put the components that can be there on a device."""
    from mstar.nn.devices import open_device

    for component in model.components().values():
        component.device = open_device(device if component.runs_on_device else "cpu")
    return model


def _answer(model: Model, request: Any) -> tuple[list[Any], float]:
    """All values of an answer on the host, and the seconds that it took."""
    started_at = time.perf_counter()
    outcome = model.run(request)
    values = [_on_host(one.value) for one in outcome.emissions] or [_on_host(outcome.result)]
    return values, time.perf_counter() - started_at


def _on_host(value: Any) -> Any:
    if hasattr(value, "cpu"):
        value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
    return value


def _count_equal(actual: list[Any], expected: list[Any]) -> tuple[int, int]:
    """Equal values, and values in total: numbers of arrays, and texts as a whole."""
    equal = count = 0
    for row, value in enumerate(expected):
        other = actual[row] if row < len(actual) else None
        if not isinstance(value, np.ndarray):
            count, equal = count + 1, equal + (repr(other) == repr(value))
            continue
        count += value.size
        if isinstance(other, np.ndarray) and other.shape == value.shape:
            limit = MAX_DIFFERENCE * float(np.abs(value).max(initial=0)) if value.dtype.kind == "f" else 0
            equal += int((np.abs(other.astype(np.float64) - value) <= limit).sum())
    return equal, count
