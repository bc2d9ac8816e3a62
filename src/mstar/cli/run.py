"""`mstar run`: one request from the terminal, to a model in this process or to a running server.

What a model takes decides what is asked of it: words are answered or said, a sound is written down, and if the model
can talk, answered. What comes is shown as it comes. It keeps no conversation: each run is a request of its own.
"""

from __future__ import annotations

import argparse
import json
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
from mstar.cli.output import OutputWriter, require_writable
from mstar.errors import LoadError, format_names

RETRY_TIMEOUT_S = 1.0
"""How long a server is asked again that does not answer."""


def add_run(commands: Any) -> None:
    """Add the command to a parser."""
    text = "ask a model once, from the terminal"
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("model", help="a model's .py file (path.py or path.py:Class), an installed name, or a served one")
    kinds = ", ".join((*AUDIO_SUFFIXES, *IMAGE_SUFFIXES))
    run.add_argument("input", nargs="*", help=f"text, - for standard input, or a file ({kinds})")
    run.add_argument("--json", help="the request in the model's own terms, as for /v1/generate")
    run.add_argument("--url", help="ask this running server; without it, the model is loaded here")
    run.add_argument("--key", default="", help="the key of that server")
    run.add_argument("--max-tokens", type=int, default=256, help="how long an answer may be (256)")
    run.add_argument("--temperature", type=float, default=0.0, help="how far to stray from the likeliest words (0)")
    run.add_argument("--seed", type=int, default=0, help="what chance begins with (0)")
    run.add_argument("--voice", default="", help="the voice to speak with (the model's own)")
    run.add_argument("-o", "--output", type=Path, help="where sound or a picture is written (answer.wav, answer.png)")
    run.add_argument("--play", action="store_true", help="play the sound, with aplay, ffplay or afplay")
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    request = _parse_json(options.json) if options.json else None
    parts = [_parse_input(one) for one in options.input]
    if options.output:
        require_writable(options.output)
    try:
        with _open_backend(options) as way:
            answer = OutputWriter(options.output, options.play)
            has_sound = any(isinstance(part, InputFile) and part.is_audio for part in parts)
            speaks = bool(has_sound or options.output or options.play)
            wish = RunParams(options.max_tokens, options.temperature, options.seed, options.voice, speaks)
            if request is None:
                _send_request(way, parts, wish, answer)
            else:
                answer.show(way.generate(request))
            answer.close()
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # as shells count it
    except BrokenPipeError:  # whoever read it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is told once more at the end
        raise SystemExit(141) from None


@contextmanager
def _open_backend(options: argparse.Namespace) -> Iterator[LocalBackend | RemoteBackend]:
    if options.url:
        try:
            from mstar.client import Client  # only who asks a server needs it
        except ModuleNotFoundError as error:
            what = f"asking a server needs `{error.name}`, which is not installed"
            raise LoadError(f"{what}\n  fix: pip install 'mstar-serve[client]'") from error
        with Client(options.url, options.key, retry_timeout_s=RETRY_TIMEOUT_S) as client:
            yield RemoteBackend(client, options.model)
        return
    begun = time.monotonic()
    print(f"loading {options.model}", file=sys.stderr)
    with LocalBackend(options.model) as here:
        print(f"loaded in {time.monotonic() - begun:.1f} s", file=sys.stderr)
        yield here


def _send_request(
    backend: LocalBackend | RemoteBackend, parts: Sequence[InputPart], params: RunParams, output: OutputWriter
) -> None:
    """Ask for what the model does with such parts."""
    sounds = [part for part in parts if isinstance(part, InputFile) and part.is_audio]
    texts = [part for part in parts if isinstance(part, str)]
    if "chat" in backend.request_types and parts:
        if "transcription" in backend.request_types:  # what is shown is what is answered
            parts = [output.show_transcript(backend.transcribe(part)) if part in sounds else part for part in parts]
        output.show(backend.chat(parts, params))
    elif "transcription" in backend.request_types and sounds == [*parts] and sounds:
        for sound in sounds:
            output.show(backend.transcribe(sound))
    elif "speech" in backend.request_types and texts == [*parts] and texts:
        output.show(backend.speak(" ".join(texts), params))
    else:
        given = format_names(part if isinstance(part, str) else str(part.path) for part in parts)
        takes = format_names(sorted(backend.request_types), "requests of its own")
        raise LoadError(
            f"the model takes {takes}, and it was given {given}\n"
            "  fix: give it text or a file that it takes, or --json '{...}' as its route wants it"
        )


# ---------------------------------------------------------------- what the user gave
def _parse_input(argument: str) -> InputPart:
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
