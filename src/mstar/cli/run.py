"""`mstar run`: send one request from the terminal, to a model loaded in this process or to a running server.

The request types of the model decide what is sent: text becomes a chat, speech, embedding or image request, audio a
transcription, and a chat request if the model accepts one. Outputs are shown as they arrive. Runs share no
conversation.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mstar.cli.backends import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    InputFile,
    InputPart,
    LocalBackend,
    RemoteBackend,
    RunParams,
)
from mstar.cli.failures import describe_exception
from mstar.cli.output import OutputWriter, require_writable
from mstar.errors import LoadError, MstarError, format_names

RETRY_TIMEOUT_S = 1.0
"""Seconds to retry a server that does not respond."""


def add_run(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Send one request to a model."
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument(
        "model",
        help="A checkpoint (folder, .gguf file or Hub id ORG/NAME), an installed name, a model's .py file "
        "(path.py or path.py:Class), or with --url a served name.",
    )
    kinds = ", ".join((*AUDIO_SUFFIXES, *IMAGE_SUFFIXES))
    run.add_argument("input", nargs="*", help=f"Text, - for standard input, or a file ({kinds}).")
    run.add_argument("--json", help="Request of the model's own type, as for /v1/generate.")
    run.add_argument("--url", help="Running server to use (default: load the model in this process).")
    run.add_argument("--key", default="", help="API key of that server.")
    run.add_argument("--max-tokens", type=int, default=256, help="Maximum number of tokens to generate (default 256).")
    run.add_argument("--temperature", type=float, help="Sampling temperature (default: that of the model).")
    run.add_argument("--seed", type=int, default=0, help="Random seed (default 0).")
    run.add_argument("--voice", default="", help="Voice of the speech (default: the model's default voice).")
    run.add_argument(
        "-o", "--output", type=Path, help="Output file for audio or an image (default output.wav or output.png)."
    )
    run.add_argument("--traceback", action="store_true", help="Print the whole traceback if the model's code fails.")
    run.add_argument("--play", action="store_true", help="Play the audio with aplay, ffplay or afplay.")
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    request = _parse_json(options.json) if options.json else None
    parts = [parse_input(argument) for argument in options.input]
    if options.output:
        require_writable(options.output)
    try:
        with _open_backend(options) as backend:
            output = OutputWriter(options.output, options.play)
            has_audio = any(isinstance(part, InputFile) and part.is_audio for part in parts)
            audio_output = bool(has_audio or options.output or options.play)
            params = RunParams(options.max_tokens, options.temperature, options.seed, options.voice, audio_output)
            if request is None:
                _send_request(backend, parts, params, output)
            else:
                output.show(backend.generate(request))
            output.close()
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # 128 + SIGINT, the shell convention
    except BrokenPipeError:  # the reader closed the pipe, such as `head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # otherwise the interpreter reports it again at exit
        raise SystemExit(141) from None
    except Exception as error:
        text = describe_exception(error, with_traceback=options.traceback)
        if text is None:
            raise
        raise MstarError(text) from error


@contextmanager
def _open_backend(options: argparse.Namespace) -> Iterator[LocalBackend | RemoteBackend]:
    if options.url:
        try:
            from mstar.client import Client  # only --url needs it
        except ModuleNotFoundError as error:
            problem = f"--url needs `{error.name}`, which is not installed"
            raise LoadError(f"{problem}\n  fix: pip install 'mstar-serve[client]'") from error
        with Client(options.url, options.key, retry_timeout_s=RETRY_TIMEOUT_S) as client:
            yield RemoteBackend(client, options.model)
        return
    started_at = time.monotonic()
    print(f"loading {options.model}", file=sys.stderr)
    with _log_lines_of_networks(), LocalBackend(options.model) as backend:
        print(f"loaded in {time.monotonic() - started_at:.1f} s", file=sys.stderr)
        yield backend


@contextmanager
def _log_lines_of_networks() -> Iterator[None]:
    """Print what networks log while they load, such as that kernels are compiled, to standard error."""
    logger, handler = logging.getLogger("mstar.nn"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _send_request(
    backend: LocalBackend | RemoteBackend, parts: Sequence[InputPart], params: RunParams, output: OutputWriter
) -> None:
    """Send the request type that fits the input parts and the model."""
    audio_files = [part for part in parts if isinstance(part, InputFile) and part.is_audio]
    texts = [part for part in parts if isinstance(part, str)]
    if "chat" in backend.request_types and parts:
        if "transcription" in backend.request_types:  # the printed transcript is the prompt
            parts = [
                output.show_transcript(backend.transcribe(part)) if part in audio_files else part for part in parts
            ]
        output.show(backend.chat(parts, params))
    elif "transcription" in backend.request_types and audio_files == [*parts] and audio_files:
        for file in audio_files:
            output.show(backend.transcribe(file))
    elif "speech" in backend.request_types and texts == [*parts] and texts:
        output.show(backend.speak(" ".join(texts), params))
    elif "embedding" in backend.request_types and texts == [*parts] and texts:
        output.show(backend.embed(texts))
    elif "image" in backend.request_types and texts == [*parts] and texts:
        output.show(backend.draw(" ".join(texts), params))
    else:
        inputs = format_names(part if isinstance(part, str) else str(part.path) for part in parts)
        accepted = format_names(sorted(backend.request_types), "requests of its own type")
        raise LoadError(
            f"the model accepts {accepted}, not {inputs}\n"
            "  fix: pass text or a file of an accepted type, or --json '{...}' with the fields of its route"
        )


# ---------------------------------------------------------------- arguments
def parse_input(argument: str) -> InputPart:
    """Read an argument: text, `-` for standard input, or an audio or image file. Raises LoadError."""
    if argument == "-":
        return sys.stdin.read()
    path = Path(argument)
    if path.suffix.lower() not in (*AUDIO_SUFFIXES, *IMAGE_SUFFIXES):
        return argument
    try:
        return InputFile(path, path.read_bytes())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: pass the path of a file") from error


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise LoadError(f"--json is not JSON: {error}\n  fix: --json '{{\"name\": value}}'") from error
