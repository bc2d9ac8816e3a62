"""Load API keys and tenants from settings, files, environment variables and the manifest.

Authentication and rate limiting are in `mstar.server.access`.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mstar.config import ApiKeyConfig, RateLimit, ServerConfig, SloConfig, read_env_variable
from mstar.errors import LoadError
from mstar.server.access.api_keys import ApiKeys, Tenant, hash_key
from mstar.server.access.host_check import is_loopback
from mstar.wire.slo import Slo

if TYPE_CHECKING:
    from mstar.cli.config import ServeConfig
    from mstar.cli.serving.manifest import Manifest, TenantConfig

log = logging.getLogger("mstar.serve")

TENANT_NAME = re.compile(r"[\w.@-]{1,64}")
SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


def load_api_keys(config: ServeConfig, server: ServerConfig) -> ApiKeys:
    """Load all keys. Raises LoadError if a key is unreadable, or if a public address has no authentication."""
    sources, rate_limit = config.resolved.build(ApiKeyConfig), config.resolved.build(RateLimit)
    defaults = config.resolved.build(SloConfig)
    slo = Slo(ttft_s=defaults.ttft_s, tokens_per_s=defaults.tokens_per_s)
    keys = [*sources.values, *(_keys_from_file(sources.file) if sources.file else ())]
    operator_keys = _keys_from_file(sources.operator_file) if sources.operator_file else []
    tenants = _tenants(config.manifest, rate_limit, slo) if config.manifest else {}
    if not keys and not operator_keys and not tenants and not server.insecure and not is_loopback(server.host):
        problem = f"{server.host} is reachable from other machines, and no API key is set"
        raise LoadError(f"{problem}\n  fix: pass --api-key-file, or --insecure to serve without authentication")
    return ApiKeys(keys, rate_limit, tenants, slo, operator_keys)


def reload_api_keys(keys: ApiKeys, read_settings: Callable[[], ServeConfig], server: ServerConfig) -> str:
    """Read all keys again, and replace those in use. Returns what changed. Raises MstarError and changes nothing."""
    configured = load_api_keys(read_settings(), server)
    if keys.is_required and not configured.is_required:
        fix = "configure a key and send SIGHUP again, or restart the server to serve without authentication"
        raise LoadError(f"the configuration has no API key any more; the previous keys stay valid\n  fix: {fix}")
    added, withdrawn = keys.replace(configured)
    return f"API keys reloaded: {added} added, {withdrawn} withdrawn"


def _keys_from_file(path: str) -> list[str]:
    try:
        with Path(path).open() as file:
            mode = os.fstat(file.fileno()).st_mode
            keys = file.read().split()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read: {error}\n  fix: pass a file with one key per line") from error
    if mode & stat.S_IWOTH:
        raise LoadError(
            f"{path}: every user of this machine can add keys (mode {mode & 0o777:o})\n  fix: chmod 600 {path}"
        )
    if mode & stat.S_IROTH:
        log.warning(
            "%s: every user of this machine can read the keys (mode %o); fix: chmod 600 %s", path, mode & 0o777, path
        )
    if not keys:
        raise LoadError(f"{path}: the file has no key\n  fix: write one key per line")
    return keys


def _tenants(manifest: Manifest, rate_limit: RateLimit, slo: Slo) -> dict[bytes, Tenant]:
    tenants: dict[bytes, Tenant] = {}
    names: set[str] = set()
    for tenant in manifest.tenants:
        if not TENANT_NAME.fullmatch(tenant.name) or tenant.name in names:
            problem = "is defined twice" if tenant.name in names else "is not a valid name"
            fix = "use a unique name of 1 to 64 letters, digits, `.`, `@`, `_` or `-`"
            raise LoadError(f"{manifest.path}: the tenant {tenant.name!r} {problem}\n  fix: {fix}")
        names.add(tenant.name)
        limits = {
            "requests_per_second": tenant.requests_per_second or rate_limit.requests_per_second,
            "max_concurrent": tenant.max_concurrent or rate_limit.max_concurrent,
        }
        objectives = {
            "ttft_s": tenant.ttft_s,
            "best_effort": tenant.best_effort,
            "weight": tenant.weight,
            "tokens_per_s": tenant.tokens_per_s,
        }
        objectives = {name: value for name, value in objectives.items() if value is not None}
        tenants[_key_digest(manifest, tenant)] = Tenant(
            tenant.name,
            msgspec.structs.replace(rate_limit, **limits),
            msgspec.structs.replace(slo, **objectives),
            is_operator=tenant.role == "operator",
        )
    return tenants


def _key_digest(manifest: Manifest, tenant: TenantConfig) -> bytes:
    """SHA-256 digest of a tenant's key."""
    prefix = f"{manifest.path}: the key of {tenant.name!r}"
    if [bool(tenant.sha256), bool(tenant.env), bool(tenant.file)].count(True) != 1:
        raise LoadError(f"{prefix} has no source, or several\n  fix: set one of sha256, env and file")
    if tenant.sha256:
        if not SHA256_HEX.fullmatch(tenant.sha256):
            fix = "printf %s KEY | sha256sum"
            raise LoadError(f"{prefix}: sha256 is not 64 hexadecimal digits\n  fix: {fix}")
        return bytes.fromhex(tenant.sha256)
    keys = (
        _keys_from_file(manifest.resolve_path(tenant.file))
        if tenant.file
        else (read_env_variable(tenant.env) or "").split()
    )
    if len(keys) != 1:
        raise LoadError(
            f"{prefix}: {tenant.file or tenant.env} has {len(keys)} keys, expected 1\n  fix: store exactly one key"
        )
    return hash_key(keys[0])
