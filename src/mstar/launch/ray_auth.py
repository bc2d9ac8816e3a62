"""Whether a Ray cluster asks for a token. One that does not runs the code of whoever can reach it."""

from __future__ import annotations

import grpc

from mstar.launch.supervisor import LaunchError

PROBE_TIMEOUT_S = 5.0
_PROBE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""Something harmless that Ray answers to those who may ask."""


def require_auth(address: str) -> None:
    """Raise LaunchError if Ray at this address answers one who has no token."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_PROBE_METHOD)(b"", timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return  # it refuses, or speaks TLS with those it knows
    what = f"the Ray cluster at {address} asks for no token: whoever reaches it can run anything there"
    fix = "`ray get-auth-token --generate`, bring that file to every host, and start Ray with RAY_AUTH_MODE=token"
    raise LaunchError(f"{what}\n  fix: {fix}; or say --insecure")
