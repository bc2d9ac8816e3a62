"""Shares of tenants in a limited resource: no tenant can take all of it, and no slot is reserved by name.

This is the dynamic threshold of shared-memory switches (Choudhury and Hahne, 1998). A tenant that uses `used` slots can
take another one while `used < TENANT_SHARE_FACTOR * free`. With `n` busy tenants each gets `8 / (1 + 8 * n)` of the
slots, and a tenant that uses none gets one as long as any is free.

Example: 1024 slots. One tenant gets at most 911 of them, two get at most 482 each. Of 8 slots or less, one tenant can
take all: there, a reserved slot would cost more than it protects.
"""

from __future__ import annotations

TENANT_SHARE_FACTOR = 8
"""Slots that a tenant can use for each free one."""


def has_share_left(tenant: str, used: int, free: int) -> bool:
    """Return whether a tenant that uses `used` slots can take one of `free` others.

    The anonymous tenant (the empty name) can take every slot: a server without API keys has no other tenant.
    """
    return free > 0 and (not tenant or used < TENANT_SHARE_FACTOR * free)
