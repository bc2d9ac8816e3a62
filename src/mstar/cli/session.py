"""`mstar session`: export a conversation of a running server to a file, and import it at another one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mstar.errors import LoadError


def add_session(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Export a conversation of a running server to a file, or import it at another one."
    session = commands.add_parser("session", help=text, description=text)
    verbs = session.add_subparsers(title="commands", required=True, metavar="COMMAND")

    export = _add_verb(verbs, "export", "Write a conversation to a file.", _export)
    export.add_argument("id", help="Id of a stored response (resp_...) or an open realtime session (sess_...).")
    export.add_argument("-o", "--output", type=Path, help="Output file (default ID.json).")
    load = _add_verb(verbs, "import", "Continue the conversation of a file at this server.", _import)
    load.add_argument("file", type=Path, help="File that `mstar session export` has written.")


def _add_verb(verbs: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text)
    verb.add_argument(
        "--url", default="http://127.0.0.1:8000", help="URL of the server (default http://127.0.0.1:8000)."
    )
    verb.add_argument("--key", default="", help="API key that owns the conversation.")
    verb.set_defaults(run=run)
    return verb


def _export(options: argparse.Namespace) -> None:
    with _client(options) as client:
        content = json.dumps(client.export_session(options.id))
    path: Path = options.output or Path(f"{options.id}.json")
    try:
        path.touch(mode=0o600)  # a conversation is private
        path.write_text(content, "utf-8")
    except OSError as error:
        raise LoadError(f"{path}: cannot be written: {error.strerror}\n  fix: choose another --output") from error
    print(f"exported {options.id} to {path}")


def _import(options: argparse.Namespace) -> None:
    try:
        content = options.file.read_bytes()
    except OSError as error:
        raise LoadError(f"{options.file}: cannot be read: {error.strerror}\n  fix: pass the path of a file") from error
    with _client(options) as client:
        imported = client.import_session(content)
    print(f"imported {options.file} as {imported.id}, model {imported.model}")
    if imported.kind == "response":
        print(f'  continue: POST /v1/responses with "previous_response_id": "{imported.id}"')
    else:
        print(f"  continue: connect to /v1/realtime?session_id={imported.id}")


def _client(options: argparse.Namespace) -> Any:
    try:
        from mstar.client import Client  # the other commands do not need it
    except ModuleNotFoundError as error:
        problem = f"`mstar session` needs `{error.name}`, which is not installed"
        raise LoadError(f"{problem}\n  fix: pip install 'mstar-serve[client]'") from error
    return Client(options.url, options.key)
