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

from mstar.asks import Picture
from mstar.server.files import Files
from mstar.server.refusals import Refusal
from mstar.server.visit import Visit, validated

Body = TypeVar("Body", bound=BaseModel)

_FIELDS = 64
"""So many texts a form may have."""


@dataclass(frozen=True, slots=True)
class Form(Generic[Body]):
    """A form that was read."""

    body: Body
    parts: Mapping[str, list[bytes | str]]
    files: Files

    async def pictures(self, name: str) -> tuple[Picture, ...]:
        """The pictures of a name, decoded."""
        return tuple([await self._picture(part, name) for part in self.parts[name]])

    async def _picture(self, part: bytes | str, name: str) -> Picture:
        return await self.files.picture(await self.files.at(part, name) if isinstance(part, str) else part, name)


async def read_form(visit: Visit, schema: type[Body], files: Mapping[str, int]) -> Form[Body]:
    """A form with texts as the schema says, and at most so many files of each name."""
    if visit.media_type != "multipart/form-data":
        what = f"the content type is {visit.media_type!r}, and multipart/form-data is needed"
        raise Refusal(415, "unsupported_media_type", what)
    texts: dict[str, str] = {}
    found: dict[str, list[bytes | str]] = {name: [] for name in files}
    try:
        async with visit.request.form(max_files=sum(files.values()), max_fields=_FIELDS) as form:
            for name, part in form.multi_items():
                if (known := name.removesuffix("[]")) in found:
                    found[known].append(part if isinstance(part, str) else await part.read())
                elif isinstance(part, str):
                    texts[name] = part
    except HTTPException as error:  # what the reader of forms raises
        raise Refusal(400, "invalid_form", error.detail) from None
    for name, limit in files.items():
        if len(found[name]) > limit:
            raise Refusal(422, "invalid_value", f"{name}: at most {limit} files", param=name)
    return Form(validated(schema, msgspec.json.encode(texts)), found, Files(visit.door.fetcher))
