"""Forms: texts and files that come together. Texts are held against a schema; files are pictures, decoded elsewhere.

A list of files comes under a name, or under that name with brackets. What a file is called is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from mstar.asks import Picture
from mstar.server.files import picture_in
from mstar.server.refusals import Refusal
from mstar.server.visit import Visit, validated

Body = TypeVar("Body", bound=BaseModel)

_FIELDS = 64
"""So many texts a form may have."""


@dataclass(frozen=True, slots=True)
class Form(Generic[Body]):
    """A form that was read."""

    body: Body
    files: Mapping[str, list[bytes]]

    async def pictures(self, name: str) -> tuple[Picture, ...]:
        """The pictures of a name, decoded."""
        return tuple([await picture_in(data, name) for data in self.files[name]])


async def read_form(visit: Visit, schema: type[Body], files: Mapping[str, int]) -> Form[Body]:
    """A form with texts as the schema says, and at most so many files of each name."""
    if visit.media_type != "multipart/form-data":
        what = f"the content type is {visit.media_type!r}, and multipart/form-data is needed"
        raise Refusal(415, "unsupported_media_type", what)
    texts: dict[str, str] = {}
    found: dict[str, list[bytes]] = {name: [] for name in files}
    try:
        async with visit.request.form(max_files=sum(files.values()), max_fields=_FIELDS) as form:
            for name, part in form.multi_items():
                if not isinstance(part, UploadFile):
                    texts[name] = part
                elif (known := name.removesuffix("[]")) in found:
                    found[known].append(await part.read())
    except HTTPException as error:  # what the reader of forms raises
        raise Refusal(400, "invalid_form", error.detail) from None
    for name, limit in files.items():
        if len(found[name]) > limit:
            raise Refusal(422, "invalid_value", f"{name}: at most {limit} files", param=name)
    return Form(validated(schema, msgspec.json.encode(texts)), found)
