"""Forms: texts and files that come together. Texts are held against a schema; files are pictures, decoded elsewhere.

A list of files comes under a name, or under that name with brackets. What a file is called is not asked. A text where a
file is wanted is its URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mstar.requests import ImageInput
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, parse_body
from mstar.server.inputs.media_inputs import MediaInputs

Body = TypeVar("Body", bound=BaseModel)

_MAX_FORM_FIELDS = 64
"""So many texts a form may have."""


@dataclass(frozen=True, slots=True)
class MultipartForm(Generic[Body]):
    """A form that was read."""

    body: Body
    file_parts: Mapping[str, list[bytes | str]]
    media: MediaInputs

    async def decode_images(self, name: str) -> tuple[ImageInput, ...]:
        """The pictures of a name, decoded."""
        return tuple([await self._decode_image(part, name) for part in self.file_parts[name]])

    async def _decode_image(self, part: bytes | str, name: str) -> ImageInput:
        return await self.media.decode_image(
            await self.media.read_url(part, name) if isinstance(part, str) else part, name
        )


async def read_form(exchange: HttpExchange, schema: type[Body], max_files: Mapping[str, int]) -> MultipartForm[Body]:
    """A form with texts as the schema says, and at most so many files of each name."""
    if exchange.media_type != "multipart/form-data":
        what = f"the content type is {exchange.media_type!r}, and multipart/form-data is needed"
        raise ApiError(415, "unsupported_media_type", what)
    texts: dict[str, str] = {}
    found: dict[str, list[bytes | str]] = {name: [] for name in max_files}
    try:
        async with exchange.request.form(max_files=sum(max_files.values()), max_fields=_MAX_FORM_FIELDS) as form:
            for name, part in form.multi_items():
                if (known := name.removesuffix("[]")) in found:
                    found[known].append(part if isinstance(part, str) else await part.read())
                elif isinstance(part, str):
                    texts[name] = part
    except HTTPException as error:  # what the reader of forms raises
        raise ApiError(400, "invalid_form", error.detail) from None
    for name, limit in max_files.items():
        if len(found[name]) > limit:
            raise ApiError(422, "invalid_value", f"{name}: at most {limit} files", param=name)
    return MultipartForm(parse_body(schema, msgspec.json.encode(texts)), found, MediaInputs(exchange.state.fetcher))
