"""A conversation that another front end has: read over its API, as the client itself could."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import h11
import msgspec
from starlette.types import Scope

from mstar.server.frontends.siblings import Siblings
from mstar.server.responses.items import Item

PAGE_SIZE = 100
"""Input items of a page; the API allows no more."""


async def read_conversation(
    siblings: Siblings, owner: int, scope: Scope, response_id: str
) -> tuple[dict[str, Any] | None, list[Item]]:
    """The response object and the items that a following response continues. None if the owner does not have it.

    `scope` is the request of the client, whose key is sent.
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
    except (OSError, TimeoutError, h11.ProtocolError):
        pass
    return None, []


async def _read(siblings: Siblings, owner: int, scope: Scope, target: str) -> Any:
    status, content = await siblings.fetch(owner, scope, target)
    return msgspec.json.decode(content) if status == 200 else None
