"""The files of the studio as routes: each is read once, compressed once, and asked for again only when it has changed.

There is a path for each file and for nothing else, so no path leads out of the folder. What the page does is in
`static`; what it asks for, any client can ask for. Who may come in is decided by others: these files hold no secret.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
INDEX, LINKS_PLACEHOLDER = "index.html", "<!-- links -->"
NEEDS_KEY_META = '<meta name="mstar-needs-key">'
STYLESHEET = "studio.css"
PRELOADED_MODULES = ("vendor/preact.js", "api.js", "live.js", "components.js", "app.js")
"""Modules that every page needs: a browser fetches them all at once, and not one when it has read another."""
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""What is served, by how a file's name ends; files of other kinds are not the page's."""
_CONTENT_SECURITY_POLICY = (
    *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:"),
    *("media-src 'self' blob:", "connect-src 'self'", "worker-src 'self'", "font-src 'none'"),
    *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
)
RESPONSE_HEADERS = {
    "Content-Security-Policy": "; ".join(_CONTENT_SECURITY_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
"""What every file is served with."""


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A file as it is sent: as it is, or compressed. Each form has a tag of its own, because its bytes are others."""

    data: bytes
    etag: str
    content_encoding: str = ""


class StaticFile:
    """One file, as an application of its own."""

    def __init__(self, data: bytes, media_type: str) -> None:
        digest = hashlib.sha256(data).hexdigest()[:32]
        self._media_type = media_type
        self._plain = EncodedFile(data, f'"{digest}"')
        self._compressed = EncodedFile(gzip.compress(data, 9, mtime=0), f'"{digest}-gzip"', "gzip")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or say that the client has it already."""
        headers = Headers(scope=scope)
        form = self._compressed if _accepts_gzip(headers.get("accept-encoding", "")) else self._plain
        told = RESPONSE_HEADERS | {"ETag": form.etag}
        if _matches_etag(headers.get("if-none-match", ""), form.etag):
            await Response(None, 304, told)(scope, receive, send)
            return
        told |= {"Content-Type": self._media_type, "Content-Length": str(len(form.data))}
        if form.content_encoding:
            told["Content-Encoding"] = form.content_encoding
        await Response(b"" if scope["method"] == "HEAD" else form.data, 200, told)(scope, receive, send)


def _accepts_gzip(accepted: str) -> bool:
    """Whether a client says that it can read gzip."""
    for one in accepted.lower().split(","):
        name, *terms = (part.strip() for part in one.split(";"))
        if name in ("gzip", "x-gzip", "*"):
            return not any(term.startswith("q=") and not term[2:].strip("0.") for term in terms)
    return False


def _matches_etag(known: str, tag: str) -> bool:
    """Whether a tag is among those that a client has."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in known.split(","))


def studio_routes(folder: Path = STATIC, *, needs_key: bool = False) -> list[Route]:
    """A route for the page, and one for each of its files. The page is told whether it has to ask for a key."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if _is_served(path))
    found = {f"/studio/{name}": folder / name for name in names if name != INDEX}
    pages = {path: StaticFile(file.read_bytes(), _MEDIA_TYPES[file.suffix]) for path, file in found.items()}
    if INDEX in names:
        text = (
            (folder / INDEX)
            .read_text("utf-8")
            .replace(LINKS_PLACEHOLDER, "\n".join([*_head_links(names), *[NEEDS_KEY_META] * needs_key]))
        )
        pages["/"] = StaticFile(text.encode(), _MEDIA_TYPES[".html"])
    return [Route(path, page, methods=["GET"]) for path, page in pages.items()]


def _is_served(path: Path) -> bool:
    return path.is_file() and path.suffix in _MEDIA_TYPES and not path.name.startswith(".")


def _head_links(names: Sequence[str]) -> list[str]:
    """What stands in the head of the page: every style sheet, and the modules that are needed first."""
    sheets = [STYLESHEET, *(name for name in names if name.startswith("css/") and name.endswith(".css"))]
    return [
        *(f'<link rel="stylesheet" href="/studio/{name}">' for name in sheets if name in names),
        *(f'<link rel="modulepreload" href="/studio/{name}">' for name in PRELOADED_MODULES if name in names),
    ]
