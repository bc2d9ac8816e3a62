"""Host check: protection of a server without API keys on a loopback address against DNS rebinding.

A web page can point its own name at 127.0.0.1. Its requests to the server are then same-origin for the browser, and the
Origin header equals the Host header. Only the name in the Host header tells such a page from a local client, so the
server accepts only names that the operator uses. `app` sends the error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from mstar.server.errors import ApiError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listening address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a host name can resolve to any address


class HostCheck:
    """The Host header values that the server accepts."""

    def __init__(self, host: str, port: int, additional: Iterable[str] = ()) -> None:
        """`host` and `port` are the listening address. `additional` are names, with or without a port."""
        own = (*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host)
        self._allowed = frozenset(value for name in own for value in (name.lower(), f"{name.lower()}:{port}"))
        self._additional = frozenset(name.lower() for name in additional)
        self._url = f"http://127.0.0.1:{port}"

    def rejection(self, host: str) -> ApiError | None:
        """The error for a request with this Host header, or None if it is accepted."""
        host = host.strip().lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if host in self._allowed or not self._additional.isdisjoint((host, name)):
            return None
        message = (
            f"the Host header {host[:64]!r} is not allowed, because this server has no API keys; fix: use {self._url}, "
            f"or start the server with --allow-host NAME or with API keys"
        )
        return ApiError(421, "host_not_allowed", message)
