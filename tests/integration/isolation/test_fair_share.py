"""A tenant with many requests does not starve another: queue, engine time, rate limits and circuit breaker."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from mstar.config import RateLimit, RuntimeConfig
from mstar.server.access import circuit_breaker
from mstar.wire.messages import RequestRejected
from mstar.wire.slo import Slo
from tests.integration.isolation.tenant_models import EveryEndpoint
from tests.integration.isolation.two_keys import CHAT, KEYS, RunningChat, chat, chat_body, serve_two_keys, wait_until

HOLD, TEXT = "hold", "four"


class Queue:
    """Requests that are queued behind one of alice, which does not finish before the gate is opened."""

    def __init__(self, server, pool):
        self._server = server
        self._pool = pool
        self._recorder = server.models["every"].recorder
        self._clients = {tenant: server.client(key) for tenant, key in KEYS.items()}
        self._futures = []
        self._send("alice", HOLD)
        wait_until(lambda: self._recorder.calls)

    def _send(self, tenant, text):
        post = self._clients[tenant].post
        self._futures.append(self._pool.submit(lambda: post(CHAT, json=chat_body(text)).status_code))

    def add(self, tenant, count):
        """Send requests; returns when all of them are queued."""
        length = self.length + count
        for _ in range(count):
            self._send(tenant, TEXT)
        wait_until(lambda: self.length == length)

    @property
    def length(self):
        server = self._server
        return server._frontend.query_counts(server._launcher.conductor).result(5.0)["queue"]

    def run(self):
        """Open the gate; return the tenants in the order in which their requests started, and all statuses."""
        self._recorder.gate.set()
        statuses = {future.result(30) for future in self._futures}
        return self._recorder.calls[len(HOLD) :: len(TEXT)], statuses

    def close(self):
        """Let all requests finish."""
        self._recorder.gate.set()
        for client in self._clients.values():
            client.close()


@contextmanager
def queue_of(**options):
    options = RuntimeConfig(max_running_requests=1, **options)
    with (
        serve_two_keys({"every": EveryEndpoint()}, options) as server,
        ThreadPoolExecutor(32) as pool,
        closing(Queue(server, pool)) as queue,
    ):
        yield queue


def test_a_queue_of_one_tenant_does_not_delay_another():
    with queue_of() as queue:
        queue.add("alice", 12)
        queue.add("bob", 1)
        starts, statuses = queue.run()
    assert statuses == {200}
    assert starts.index("bob") <= 1, "it starts next, not after the queue of alice"


def test_both_tenants_get_half_of_the_starts():
    with queue_of() as queue:
        queue.add("alice", 8)
        queue.add("bob", 4)
        starts, statuses = queue.run()
    assert statuses == {200}
    assert starts[:8].count("bob") == 4, starts


def test_a_full_queue_of_one_tenant_rejects_no_request_of_another():
    with queue_of(max_queued_requests=4) as queue:
        queue.add("alice", 4)
        queue.add("bob", 2)
        starts, statuses = queue.run()
    assert statuses == {200}
    assert starts.count("bob") == 2


def test_running_requests_of_one_tenant_do_not_take_the_engine_time_of_another():
    """Eight requests of alice and one of bob run at once, and no two calls share a batch."""
    with (
        serve_two_keys({"every": EveryEndpoint()}, RuntimeConfig(max_batch_size=1)) as server,
        server.client(KEYS["alice"]) as alice,
        server.client(KEYS["bob"]) as bob,
        RunningChat(alice, "busy", letters=4000, n=8),
    ):
        calls = server.models["every"].recorder.calls
        wait_until(lambda: len(calls) > 40)
        calls.clear()
        text = chat(bob, "slow" + "x" * 16)
        during = [*calls]
    assert during.count("bob") == len(text)
    while_bob_runs = during[during.index("bob") : len(during) - during[::-1].index("bob")]
    assert while_bob_runs.count("alice") <= 2 * len(text), "half of the calls, not eight of nine"


def open_unread_stream(server, tenant):
    """A connection with a long streamed response that is never read."""
    body = json.dumps(chat_body("slow" + "x" * 4000, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS[tenant]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + body)
    return connection


def test_unread_streams_of_one_tenant_do_not_lock_out_another():
    """Alice opens more streams than can run and wait; requests of bob still start at once."""
    options = RuntimeConfig(max_running_requests=16, max_queued_requests=8)
    with (
        serve_two_keys({"every": EveryEndpoint()}, options) as server,
        server.client(KEYS["bob"]) as bob,
        ExitStack() as connections,
    ):
        recorder = server.models["every"].recorder
        for _ in range(32):
            connections.enter_context(closing(open_unread_stream(server, "alice")))
        wait_until(lambda: recorder.calls.count("alice") > 100)
        assert [bob.post(CHAT, json=chat_body("hi")).status_code for _ in range(20)] == [200] * 20


def test_connections_of_one_tenant_do_not_lock_out_another():
    """Alice keeps connections open, up to its share of them."""
    with (
        serve_two_keys({"every": EveryEndpoint()}) as server,
        server.client(KEYS["alice"]) as alice,
        server.client(KEYS["bob"]) as bob,
        ExitStack() as connections,
    ):
        server.state.max_connections = 18
        for _ in range(16):
            connections.enter_context(closing(open_unread_stream(server, "alice")))
        wait_until(lambda: server.state.active_requests == 16)
        refused = alice.post(CHAT, json=chat_body("hi"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert bob.post(CHAT, json=chat_body("hi")).status_code == 200


# ---------------------------------------------------------------- limits
def test_the_rate_limit_of_one_tenant_does_not_apply_to_another():
    limits = {"alice": RateLimit(requests_per_second=0.001, max_concurrent=2)}
    with (
        serve_two_keys({"every": EveryEndpoint()}, rate_limits=limits) as server,
        server.client(KEYS["alice"]) as alice,
        server.client(KEYS["bob"]) as bob,
    ):
        statuses = [alice.post(CHAT, json=chat_body("hi")).status_code for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        assert [bob.post(CHAT, json=chat_body("hi")).status_code for _ in range(4)] == [200] * 4


def test_an_open_circuit_of_one_tenant_does_not_reject_another(two_keys, alice, bob, monkeypatch):
    monkeypatch.setattr(circuit_breaker, "MAX_OPEN_S", 30.0)
    breaker = circuit_breaker.CircuitBreaker()
    monkeypatch.setattr(two_keys.state, "circuit_breaker", breaker)
    breaker.admit("alice", "every", Slo())(RequestRejected("r", 429, "the queue is full", 60.0))
    assert breaker.is_open
    assert alice.post(CHAT, json=chat_body("hi")).status_code == 429
    assert bob.post(CHAT, json=chat_body("hi")).status_code == 200
