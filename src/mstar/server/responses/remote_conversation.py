"""A conversation that another front end has: read over its API, as the client itself could."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import h11
import msgspec
from starlette.types import Scope

from mstar.server.errors import ApiError
from mstar.server.frontends.siblings import Siblings
from mstar.server.responses.items import Item

RETRY_AFTER_S = 1.0
"""Retry-After, in seconds, if the other front end rejects the request or is too slow."""
PAGE_SIZE = 100
"""Input items of a page; the API allows no more."""


async def read_conversation(
    siblings: Siblings, owner: int, scope: Scope, response_id: str
) -> tuple[dict[str, Any] | None, list[Item]]:
    """The response object and the items that a following response continues. None if the owner does not have it.

    `scope` is the request of the client, whose key is sent. Raises ApiError if the owner rejects it or is too slow.
    """
    path = f"/v1/responses/{quote(response_id, safe='')}"
    try:
        content = await _read(siblings, owner, scope, path)
        items, after = list[Item](), ""
        while content is not None:
            page = await _read(siblings, owner, scope, f"{path}/input_items?order=asc&limit={PAGE_SIZE}{after}")
            if page is None:
                return None, []
            items += page["data"]
            if not page["has_more"]:
                return content, [*items, *content["output"]]
            after = f"&after={quote(page['last_id'], safe='')}"
    except TimeoutError as error:
        raise _busy(owner) from error
    except (OSError, h11.ProtocolError):
        pass  # it has stopped
    return None, []


async def _read(siblings: Siblings, owner: int, scope: Scope, target: str) -> Any:
    status, content = await siblings.fetch(owner, scope, target)
    if status not in (200, 404):
        raise _busy(owner)
    return msgspec.json.decode(content) if status == 200 else None


def _busy(owner: int) -> ApiError:
    message = f"front end {owner}, which has the previous response, is busy; fix: retry after {RETRY_AFTER_S:g} s"
    return ApiError(503, "unavailable", message, retry_after=RETRY_AFTER_S)
