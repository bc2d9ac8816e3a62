"""A stored response as part of a session file: the items that a following response continues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.openai.schema import MAX_MESSAGES, StrictModel
from mstar.server.responses.events import ResponseBuilder
from mstar.server.responses.items import to_items
from mstar.server.responses.responses import request_fields
from mstar.server.responses.schema import InputItem, Metadata, ResponsesBody
from mstar.server.responses.store import StoredResponse
from mstar.server.state import ServedModel

Items = Annotated[list[InputItem], Field(max_length=MAX_MESSAGES)]


class SavedResponse(StrictModel):
    """What is kept of a response."""

    status: Literal["completed", "incomplete"]
    instructions: str | None
    metadata: Annotated[Metadata, Field(max_length=16)]
    input: Items
    output: Items


def save_response(stored: StoredResponse) -> dict[str, Any]:
    """The fields of `SavedResponse`. Raises ApiError while the response is in progress."""
    content = stored.builder.content
    if content["status"] not in ("completed", "incomplete"):
        message = f"the response is {content['status']}. fix: export a completed response"
        raise ApiError(409, "session_busy", message)
    fields = {name: content[name] for name in ("status", "instructions", "metadata", "output")}
    return fields | {"input": stored.input_items}


def restore_response(session: dict[str, Any], served: ServedModel, id_mark: str) -> StoredResponse:
    """A response with a new id and the same items. Raises ApiError."""
    saved = parse_body(SavedResponse, msgspec.json.encode(session))
    body = ResponsesBody(model=served.name, input="", instructions=saved.instructions, metadata=saved.metadata)
    builder = ResponseBuilder(request_fields(body, served.sampling()), saved.status, id_mark)
    builder.content["output"] = to_items(saved.output)
    return StoredResponse(builder, to_items(saved.input))
