"""Static files of the studio as routes: read and gzip-compressed once at startup, revalidated by ETag.

Every file has its own route, so no path traversal is possible. The page uses the public HTTP API only. These routes
need no authentication: the files contain no secret.
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
INDEX = "index.html"
LINKS_PLACEHOLDER = "<!-- links -->"
NEEDS_KEY_META = '<meta name="mstar-needs-key">'
STYLESHEET = "studio.css"
PRELOADED_MODULES = ("vendor/preact.js", "api.js", "live.js", "components.js", "app.js")
"""Modules that every page needs, preloaded in parallel."""
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Content types by file suffix. Files with another suffix are not served."""
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
"""Headers of every response."""


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A plain or compressed file. Each encoding has its own ETag."""

    data: bytes
    etag: str
    content_encoding: str = ""


class StaticFile:
    """ASGI application that serves one file."""

    def __init__(self, data: bytes, media_type: str) -> None:
        digest = hashlib.sha256(data).hexdigest()[:32]
        self._media_type = media_type
        self._plain = EncodedFile(data, f'"{digest}"')
        self._compressed = EncodedFile(gzip.compress(data, 9, mtime=0), f'"{digest}-gzip"', "gzip")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or 304 if the client has it."""
        headers = Headers(scope=scope)
        encoded = self._compressed if _accepts_gzip(headers.get("accept-encoding", "")) else self._plain
        response_headers = RESPONSE_HEADERS | {"ETag": encoded.etag}
        if _matches_etag(headers.get("if-none-match", ""), encoded.etag):
            await Response(None, 304, response_headers)(scope, receive, send)
            return
        response_headers |= {"Content-Type": self._media_type, "Content-Length": str(len(encoded.data))}
        if encoded.content_encoding:
            response_headers["Content-Encoding"] = encoded.content_encoding
        await Response(b"" if scope["method"] == "HEAD" else encoded.data, 200, response_headers)(scope, receive, send)


def _accepts_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip."""
    for item in accepted.lower().split(","):
        name, *params = (part.strip() for part in item.split(";"))
        if name in ("gzip", "x-gzip", "*"):
            return not any(param.startswith("q=") and not param[2:].strip("0.") for param in params)
    return False


def _matches_etag(known: str, tag: str) -> bool:
    """Whether an If-None-Match header contains the ETag."""
    return any(item.strip().removeprefix("W/") in (tag, "*") for item in known.split(","))


def studio_routes(folder: Path = STATIC, *, needs_key: bool = False) -> list[Route]:
    """Routes of the page and its files. `needs_key` makes the page show the sign-in dialog first."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if _is_served(path))
    files = {f"/studio/{name}": folder / name for name in names if name != INDEX}
    pages = {path: StaticFile(file.read_bytes(), _MEDIA_TYPES[file.suffix]) for path, file in files.items()}
    if INDEX in names:
        links = [*_head_links(names), *([NEEDS_KEY_META] if needs_key else [])]
        text = (folder / INDEX).read_text("utf-8").replace(LINKS_PLACEHOLDER, "\n".join(links))
        pages["/"] = StaticFile(text.encode(), _MEDIA_TYPES[".html"])
    return [Route(path, page, methods=["GET"]) for path, page in pages.items()]


def _is_served(path: Path) -> bool:
    return path.is_file() and path.suffix in _MEDIA_TYPES and not path.name.startswith(".")


def _head_links(names: Sequence[str]) -> list[str]:
    """Link elements of the page: every stylesheet, and the preloaded modules."""
    sheets = [STYLESHEET, *(name for name in names if name.startswith("css/") and name.endswith(".css"))]
    return [
        *(f'<link rel="stylesheet" href="/studio/{name}">' for name in sheets if name in names),
        *(f'<link rel="modulepreload" href="/studio/{name}">' for name in PRELOADED_MODULES if name in names),
    ]
