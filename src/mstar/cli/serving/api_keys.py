"""The keys that a server is given, read from where an operator keeps them. What a key may do is decided elsewhere."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mstar.config import ApiKeyConfig, RateLimit, ServerConfig, SloConfig, read_env_variable
from mstar.errors import LoadError
from mstar.server.access.api_keys import ApiKeys, Tenant, hash_key
from mstar.wire.slo import Slo

if TYPE_CHECKING:
    from mstar.cli.config import ServeConfig
    from mstar.cli.serving.manifest import Manifest, TenantConfig

TENANT_NAME = re.compile(r"[\w.@-]{1,64}")
SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


def load_api_keys(found: ServeConfig, serving: ServerConfig) -> ApiKeys:
    """All keys. Raises LoadError if one cannot be read, or if anybody could come in from outside."""
    sources, allowance = found.resolved.build(ApiKeyConfig), found.resolved.build(RateLimit)
    pacing = found.resolved.build(SloConfig)
    pace = Slo(ttft_s=pacing.ttft_s, tokens_per_s=pacing.tokens_per_s)
    keys = [*sources.values, *(_keys_from_file(sources.file) if sources.file else ())]
    named = _tenants(found.manifest, allowance, pace) if found.manifest else {}
    if not keys and not named and not serving.insecure and not _is_loopback(serving.host):
        what = f"{serving.host} can be reached from other machines, and there is no key"
        raise LoadError(f"{what}\n  fix: give --api-key-file, or --insecure if anybody may use it")
    return ApiKeys(keys, allowance, named, pace)


def _keys_from_file(path: str) -> list[str]:
    try:
        keys = Path(path).read_text().split()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read: {error}\n  fix: pass a file with a key on each line") from error
    if not keys:
        raise LoadError(f"{path}: it holds no key\n  fix: write a key on each line")
    return keys


def _tenants(manifest: Manifest, allowance: RateLimit, pace: Slo) -> dict[bytes, Tenant]:
    found: dict[bytes, Tenant] = {}
    names: set[str] = set()
    for one in manifest.tenants:
        if not TENANT_NAME.fullmatch(one.name) or one.name in names:
            why = "is there twice" if one.name in names else "is no name"
            raise LoadError(
                f"{manifest.path}: the holder {one.name!r} {why}\n  fix: name each once, by letters and digits"
            )
        names.add(one.name)
        own = {
            "requests_per_second": one.requests_per_second or allowance.requests_per_second,
            "max_concurrent": one.max_concurrent or allowance.max_concurrent,
        }
        promised = {
            "ttft_s": one.ttft_s,
            "best_effort": one.best_effort,
            "weight": one.weight,
            "tokens_per_s": one.tokens_per_s,
        }
        promised = {name: value for name, value in promised.items() if value is not None}
        found[_key_digest(manifest, one)] = Tenant(
            one.name, msgspec.structs.replace(allowance, **own), msgspec.structs.replace(pace, **promised)
        )
    return found


def _key_digest(manifest: Manifest, one: TenantConfig) -> bytes:
    """The digest of a holder's key."""
    where = f"{manifest.path}: the key of {one.name!r}"
    if [bool(one.sha256), bool(one.env), bool(one.file)].count(True) != 1:
        raise LoadError(f"{where} is in no place, or in several\n  fix: give one of sha256, env and file")
    if one.sha256:
        if not SHA256_HEX.fullmatch(one.sha256):
            fix = "printf %s KEY | sha256sum"
            raise LoadError(f"{where}: its sha256 is not 64 hexadecimal digits\n  fix: {fix}")
        return bytes.fromhex(one.sha256)
    keys = _keys_from_file(manifest.resolve_path(one.file)) if one.file else (read_env_variable(one.env) or "").split()
    if len(keys) != 1:
        raise LoadError(f"{where}: {one.file or one.env} holds {len(keys)} keys\n  fix: have one there")
    return hash_key(keys[0])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can stand for any address
