"""The keys that a server is given, read from where an operator keeps them. What a key may do is decided elsewhere."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mstar.config import Allowance, KeySources, Pacing, Serving, variable
from mstar.errors import LoadError
from mstar.server.keys import Holder, Keys, digest_of
from mstar.wire.pace import Pace

if TYPE_CHECKING:
    from mstar.cli.config import Chosen
    from mstar.cli.manifest import HolderEntry, Manifest

NAME = re.compile(r"[\w.@-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def read_keys(found: Chosen, serving: Serving) -> Keys:
    """All keys. Raises LoadError if one cannot be read, or if anybody could come in from outside."""
    sources, allowance = found.resolved.made(KeySources), found.resolved.made(Allowance)
    pacing = found.resolved.made(Pacing)
    pace = Pace(first_s=pacing.first_s, read=pacing.read)
    keys = [*sources.given, *(_in_file(sources.file) if sources.file else ())]
    named = _named(found.manifest, allowance, pace) if found.manifest else {}
    if not keys and not named and not serving.insecure and not _is_loopback(serving.host):
        what = f"{serving.host} can be reached from other machines, and there is no key"
        raise LoadError(f"{what}\n  fix: give --api-key-file, or --insecure if anybody may use it")
    return Keys(keys, allowance, named, pace)


def _in_file(path: str) -> list[str]:
    try:
        keys = Path(path).read_text().split()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read: {error}\n  fix: pass a file with a key on each line") from error
    if not keys:
        raise LoadError(f"{path}: it holds no key\n  fix: write a key on each line")
    return keys


def _named(manifest: Manifest, allowance: Allowance, pace: Pace) -> dict[bytes, Holder]:
    found: dict[bytes, Holder] = {}
    names: set[str] = set()
    for one in manifest.holders:
        if not NAME.fullmatch(one.name) or one.name in names:
            why = "is there twice" if one.name in names else "is no name"
            raise LoadError(
                f"{manifest.path}: the holder {one.name!r} {why}\n  fix: name each once, by letters and digits"
            )
        names.add(one.name)
        own = {"a_second": one.a_second or allowance.a_second, "at_once": one.at_once or allowance.at_once}
        promised = {"first_s": one.first_s, "is_batch": one.batch, "weight": one.weight, "read": one.read}
        promised = {name: value for name, value in promised.items() if value is not None}
        found[_digest(manifest, one)] = Holder(
            one.name, msgspec.structs.replace(allowance, **own), msgspec.structs.replace(pace, **promised)
        )
    return found


def _digest(manifest: Manifest, one: HolderEntry) -> bytes:
    """The digest of a holder's key."""
    where = f"{manifest.path}: the key of {one.name!r}"
    if [bool(one.sha256), bool(one.env), bool(one.file)].count(True) != 1:
        raise LoadError(f"{where} is in no place, or in several\n  fix: give one of sha256, env and file")
    if one.sha256:
        if not DIGEST.fullmatch(one.sha256):
            fix = "printf %s KEY | sha256sum"
            raise LoadError(f"{where}: its sha256 is not 64 hexadecimal digits\n  fix: {fix}")
        return bytes.fromhex(one.sha256)
    keys = _in_file(manifest.beside(one.file)) if one.file else (variable(one.env) or "").split()
    if len(keys) != 1:
        raise LoadError(f"{where}: {one.file or one.env} holds {len(keys)} keys\n  fix: have one there")
    return digest_of(keys[0])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can stand for any address
