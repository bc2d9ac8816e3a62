"""Command `mstar diff`: load two versions of a model, replay a request on both, print the first op call that differs.

Both run in this process, one call at a time, so equal versions give equal bits. A request that generates tokens is sent
with log probabilities: then a difference in the logits shows before a token changes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.checkpoints.target import resolve_target
from mstar.errors import LoadError, MstarError, format_count, format_names
from mstar.requests import ChatRequest, EmbeddingRequest, ImageRequest, Message, SpeechRequest, TranscriptionRequest

if TYPE_CHECKING:
    from mstar.cli.diff.call_recorder import CallRecorder
    from mstar.cli.diff.difference import Difference, Run
    from mstar.plan.planned_model import PlannedModel
    from mstar.walk.model import Model

LOGPROBS = 5
"""Number of most likely tokens whose log probabilities are compared."""
VERSION_HELP = "A checkpoint, an installed name (NAME@PATH sets the weights), or a model's .py file."


def add_diff(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Replay a request on two versions of a model, and name the first op call whose result differs."
    diff = commands.add_parser("diff", help=text, description=text)
    add = diff.add_argument
    add("first", metavar="A", help=VERSION_HELP)
    add("second", metavar="B", help="The other version, in the same way.")
    add("input", nargs="*", help="Text, or an audio or image file (default: the first warm-up request of A).")
    add("--json-request", help="Request of the model's own type, as for /v1/generate.")
    add("--placement-a", type=Path, help="Placement file whose component settings A gets.")
    add("--placement-b", type=Path, help="Placement file whose component settings B gets.")
    add("--max-tokens", type=int, default=32, help="Maximum number of tokens to generate (default 32).")
    add("--seed", type=int, default=0, help="Random seed (default 0).")
    add(
        "--tolerance",
        type=float,
        default=0.0,
        help="Maximum absolute difference of outputs that counts as equal (default 0: every bit).",
    )
    add("--json", action="store_true", help="Print JSON.")
    diff.set_defaults(run=_diff)


def _diff(options: argparse.Namespace) -> None:
    from mstar.cli.diff.difference import find_difference

    started_at = time.monotonic()
    first = _load(options.first, options.placement_a)
    second = _load(options.second, options.placement_b)
    request = _make_request(options, first)
    difference, calls = find_difference(runner(first.model, request), runner(second.model, request), options.tolerance)
    seconds = time.monotonic() - started_at
    if options.json:
        entry = None if difference is None else {**asdict(difference), "is_here": difference.is_here}
        print(json.dumps({"calls": calls, "seconds": round(seconds, 3), "difference": entry}))
    elif difference is None:
        print(f"no difference in {format_count(calls, 'op call')} ({seconds:.1f} s)")
    else:
        print(describe(difference))
    if difference is not None:
        raise SystemExit(1)


def describe(difference: Difference) -> str:
    """The report for people."""
    op, number = difference.call
    size = "" if difference.max_abs is None else f", max abs difference {difference.max_abs:.3g}"
    lines = [f"first difference: {op}, call {number}: {difference.what}{size}"]
    if difference.note:
        lines.append(f"  {difference.note}")
    differing = [name for name, is_equal in difference.arguments.items() if not is_equal]
    if differing:
        lines.append(f"  its arguments differ: {format_names(differing)}; the fault is before this call")
    elif difference.arguments:
        lines.append(f"  its arguments are equal ({format_names(difference.arguments)}); the fault is in this op")
    return "\n".join(lines)


# ---------------------------------------------------------------- versions
def _load(target: str, placement: Path | None) -> PlannedModel:
    from mstar.plan.planned_model import load_planned_models

    try:
        text = "" if placement is None else placement.read_text()
    except OSError as error:
        raise LoadError(f"{placement}: cannot be read: {error.strerror}\n  fix: pass a placement file") from error
    planned = load_planned_models({"model": resolve_target(target)}, {"model": text})["model"]
    for name in planned.model.components():
        planned.apply_settings(name)
    return planned


def runner(model: Model, request: Any) -> Run:
    """A function that serves the request alone. An error of the model ends it: the recorder has the call."""
    from mstar.testing.local_runtime import LocalRuntime

    def run(recorder: CallRecorder) -> None:
        runtime = LocalRuntime(model, max_batch_size=1, executor=recorder)
        try:
            runtime.run(request)
        except MstarError:
            raise
        except Exception:
            if not any(call.error for call in recorder.calls.values()):
                raise

    return run


# ---------------------------------------------------------------- request
def _make_request(options: argparse.Namespace, planned: PlannedModel) -> Any:
    """The request from the command line. Raises LoadError."""
    from mstar.cli.backends import InputFile
    from mstar.cli.run import parse_input
    from mstar.server.errors import ApiError
    from mstar.server.generic.request_parsing import parse_request
    from mstar.server.state import ServedModel

    served = ServedModel.from_model("model", planned.model)
    if options.json_request:
        try:
            return parse_request(served, json.loads(options.json_request))
        except (ApiError, ValueError) as error:
            raise LoadError(f"--json-request: {error}\n  fix: pass the fields of the model's route") from None
    parts: Sequence[str | InputFile] = [parse_input(argument) for argument in options.input]
    if not parts:
        requests = planned.model.warmup_requests()
        if not requests:
            raise LoadError("the model has no warm-up request\n  fix: pass an input, or --json-request")
        return _with_logprobs(requests[0])
    return _with_logprobs(_request_of(options, served, parts))


def _request_of(options: argparse.Namespace, served: Any, parts: Sequence[Any]) -> Any:
    from mstar.cli.backends import decode_file

    accepted = served.accepted_types
    text = " ".join(part for part in parts if isinstance(part, str))
    files = [part for part in parts if not isinstance(part, str)]
    if ChatRequest in accepted and not (files and TranscriptionRequest in accepted and not text):
        content = tuple(part if isinstance(part, str) else decode_file(part) for part in parts)
        sampling = served.sampling(max_tokens=options.max_tokens, temperature=0.0, seed=options.seed)
        return ChatRequest((Message("user", content),), sampling)
    if TranscriptionRequest in accepted and files:
        return TranscriptionRequest(decode_file(files[0]))
    for kind, request in (
        (SpeechRequest, SpeechRequest(text, seed=options.seed)),
        (EmbeddingRequest, EmbeddingRequest((text,))),
        (ImageRequest, ImageRequest(text, seed=options.seed)),
    ):
        if kind in accepted and text:
            return request
    names = format_names(kind.__name__ for kind in accepted if isinstance(kind, type))
    raise LoadError(f"the model accepts {names}, not this input\n  fix: pass --json-request")


def _with_logprobs(request: Any) -> Any:
    if isinstance(request, ChatRequest) and request.sampling.logprobs is None:
        return replace(request, sampling=replace(request.sampling, logprobs=LOGPROBS))
    return request
