"""Check of a Ray cluster's token authentication: it fails closed."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from mstar.launch import ray_launcher
from mstar.launch.ray_launcher import require_auth
from mstar.launch.supervisor import LaunchError


class ProbeHandler(grpc.GenericRpcHandler):
    """Ends every call with a status, or answers it after a delay."""

    def __init__(self, status=None, delay_s=0.0):
        self._status = status
        self._delay_s = delay_s

    def service(self, handler_call_details):
        def respond(request, context):
            time.sleep(self._delay_s)
            if self._status is not None:
                context.abort(self._status, "as the test says")
            return b""

        return grpc.unary_unary_rpc_method_handler(respond)


@contextmanager
def serving(*handlers):
    """Address of a gRPC server."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_cluster_that_rejects_a_call_without_a_token_is_accepted(status):
    with serving(ProbeHandler(status)) as address:
        require_auth(address)


def test_a_cluster_that_answers_a_call_without_a_token_is_rejected():
    with serving(ProbeHandler()) as address, pytest.raises(LaunchError, match="requires no token"):
        require_auth(address)


@pytest.mark.parametrize("status", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_any_other_status_is_rejected_with_what_to_do(status):
    with serving(ProbeHandler(status)) as address, pytest.raises(LaunchError) as rejected:
        require_auth(address)
    assert f"cannot verify that the Ray cluster at {address} requires a token" in str(rejected.value)
    assert f"ended with {status.name}\n  fix: check that this host reaches the address" in str(rejected.value)


def test_a_server_without_the_method_is_rejected():
    with serving() as address, pytest.raises(LaunchError, match="UNIMPLEMENTED"):
        require_auth(address)


def test_an_address_where_nothing_listens_is_rejected():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LaunchError, match="UNAVAILABLE"):
        require_auth(f"127.0.0.1:{port}")


def test_a_cluster_that_does_not_answer_in_time_is_rejected(monkeypatch):
    monkeypatch.setattr(ray_launcher, "AUTH_PROBE_TIMEOUT_S", 0.2)
    with serving(ProbeHandler(delay_s=1.0)) as address, pytest.raises(LaunchError, match="DEADLINE_EXCEEDED"):
        require_auth(address)


def test_mutual_tls_replaces_the_token(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    require_auth("127.0.0.1:1")
