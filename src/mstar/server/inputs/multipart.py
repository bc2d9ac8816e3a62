"""Multipart forms with images: validates the text fields with a schema and collects the file parts.

Repeated files arrive as `name` or `name[]`. File names are ignored. A text part in place of a file is its URL.
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
"""Maximum text fields of a form."""


@dataclass(frozen=True, slots=True)
class MultipartForm(Generic[Body]):
    """Parsed form: its fields, and the bytes or URLs of its files."""

    body: Body
    file_parts: Mapping[str, list[bytes | str]]
    media: MediaInputs

    async def decode_images(self, name: str) -> tuple[ImageInput, ...]:
        """Decode all files of a name, downloading those given by URL. Raises ApiError."""
        return tuple([await self._decode_image(part, name) for part in self.file_parts[name]])

    async def _decode_image(self, part: bytes | str, name: str) -> ImageInput:
        return await self.media.decode_image(
            await self.media.read_url(part, name) if isinstance(part, str) else part, name
        )


async def read_form(exchange: HttpExchange, schema: type[Body], max_files: Mapping[str, int]) -> MultipartForm[Body]:
    """Parse and validate a form; `max_files` limits the files of each name. Raises ApiError."""
    if exchange.media_type != "multipart/form-data":
        message = f"unsupported content type {exchange.media_type!r}. fix: send multipart/form-data"
        raise ApiError(415, "unsupported_media_type", message)
    fields: dict[str, str] = {}
    files: dict[str, list[bytes | str]] = {name: [] for name in max_files}
    try:
        async with exchange.request.form(max_files=sum(max_files.values()), max_fields=_MAX_FORM_FIELDS) as form:
            for name, part in form.multi_items():
                if (file_name := name.removesuffix("[]")) in files:
                    files[file_name].append(part if isinstance(part, str) else await part.read())
                elif isinstance(part, str):
                    fields[name] = part
    except HTTPException as error:  # raised by Starlette's form parser
        raise ApiError(400, "invalid_form", f"invalid multipart form: {error.detail}") from None
    for name, limit in max_files.items():
        if len(files[name]) > limit:
            message = f"{name}: {len(files[name])} files, the limit is {limit}. fix: send fewer files"
            raise ApiError(400, "invalid_value", message, param=name)
    return MultipartForm(parse_body(schema, msgspec.json.encode(fields)), files, exchange.media_inputs())
