"""After a refusal the door is shut for a moment: to whom, for how long, and that nothing is read meanwhile."""

import json
import socket

import pytest

from mstar.config import Allowance, Options
from mstar.server.door import Phase
from mstar.server.early import Early
from mstar.server.keys import Keys
from mstar.server.latch import ROUND_S, SHUT_S, Latch
from mstar.server.pacing import HEADER
from mstar.server.refusals import Refusal
from mstar.wire import messages as m
from mstar.wire.pace import Pace
from tests.server.parts import said, serving

FULL = m.Refused("r", 429, "too many requests are waiting", 2.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def latch(clock):
    return Latch(clock)


# ---------------------------------------------------------------- for how long
def test_it_is_shut_for_a_moment_and_the_wait_is_counted_down(latch, clock):
    latch.enter("a", "x", Pace())(FULL)
    clock.now += 0.04
    told = latch.refusal("a", "x", Pace())
    assert (told.status, told.code, told.message) == (429, "overloaded", FULL.why)
    assert told.retry_after == pytest.approx(1.96)
    clock.now += SHUT_S - 0.04
    assert latch.refusal("a", "x", Pace()) is None


def test_it_is_open_again_before_a_place_is_free(latch, clock):
    latch.enter("a", "x", Pace())(m.Refused("r", 429, "full", 0.02))
    clock.now += 0.009
    assert latch.refusal("a", "x", Pace()) is not None
    clock.now += 0.001
    assert latch.refusal("a", "x", Pace()) is None


@pytest.mark.parametrize(("status", "seconds"), [(503, 5.0), (404, 0.0), (429, 0.0)])
def test_what_is_refused_for_another_reason_shuts_nothing(latch, status, seconds):
    latch.enter("a", "x", Pace())(m.Refused("r", status, "no", seconds))
    assert latch.refusal("a", "x", Pace()) is None


@pytest.fixture
def tried(latch, clock):
    """One was refused after 8 ms, and after a moment another one was let through."""
    refused = latch.enter("a", "x", Pace())
    clock.now += 0.008
    refused(FULL)
    clock.now += SHUT_S
    assert latch.refusal("a", "x", Pace()) is None
    return latch.enter("a", "x", Pace())


def test_one_goes_first_and_others_follow_when_it_was_not_refused(tried, latch, clock):
    for width in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(width - (width == 1)):
            latch.enter("a", "x", Pace())
        assert latch.is_shut
        with pytest.raises(Refusal):
            latch.enter("a", "x", Pace())
        clock.now += 0.009
    for _ in range(1000):
        latch.enter("a", "x", Pace())


def test_who_is_told_to_wait_is_told_for_how_long(latch, clock):
    refused = latch.enter("a", "x", Pace())
    clock.now += 1.0
    refused(m.Refused("r", 429, "full", 0.02))
    for _ in range(3):  # longer than it was said at first
        clock.now += ROUND_S
        while latch.refusal("a", "x", Pace()) is None:
            latch.enter("a", "x", Pace())
        assert latch.refusal("a", "x", Pace()).retry_after >= ROUND_S - 1e-9


def test_a_refusal_that_is_slow_does_not_make_others_wait(latch, clock):
    refused = latch.enter("a", "x", Pace())
    clock.now += 3.0
    refused(FULL)
    for _ in range(3):
        clock.now += SHUT_S
        latch.enter("a", "x", Pace())
    clock.now += ROUND_S
    assert latch.refusal("a", "x", Pace()) is None


def test_if_it_is_refused_the_door_is_shut_again(tried, latch, clock):
    clock.now += 0.005
    tried(FULL)
    clock.now += SHUT_S - 0.001
    assert latch.refusal("a", "x", Pace()) is not None


# ---------------------------------------------------------------- to whom
def test_other_keys_and_other_models_may_come_in(latch):
    latch.enter("a", "x", Pace())(FULL)
    assert latch.refusal("b", "x", Pace()) is None
    assert latch.refusal("a", "y", Pace()) is None


@pytest.mark.parametrize(
    ("refused", "asked", "is_shut"),
    [
        (Pace(1.0), Pace(1.0), True),
        (Pace(1.0), Pace(0.5), True),
        (Pace(1.0), Pace(1.5), False),
        (Pace(1.0), Pace(), False),
        (Pace(), Pace(9.0), True),
        (Pace(), Pace(is_batch=True), False),
        (Pace(is_batch=True), Pace(), False),
        (Pace(is_batch=True), Pace(is_batch=True), True),
    ],
)
def test_who_can_wait_for_longer_may_come_in(latch, refused, asked, is_shut):
    latch.enter("a", "x", refused)(FULL)
    assert (latch.refusal("a", "x", asked) is not None) == is_shut


def test_who_wants_too_much_does_not_let_others_in(latch):
    for refused in [latch.enter("a", "x", Pace(first_s)) for first_s in (1.0, 0.1)]:
        refused(FULL)
    assert latch.refusal("a", "x", Pace(0.8)) is not None


# ---------------------------------------------------------------- in a server
@pytest.fixture(scope="module")
def server():
    with serving(keys=Keys(["right", "other"]), options=Options(max_live=1, queue_bound=0)) as started:
        yield started


@pytest.fixture
def holder(server):
    return server.door.keys.holder("Bearer right").name


@pytest.fixture
def shut(server, holder, latch, monkeypatch):
    """The server, shut for one key's chats and vectors until the end of the test."""
    monkeypatch.setattr(server.door, "latch", latch)
    for model in ("parrot", "vectors"):
        latch.enter(holder, model, Pace())(FULL)
    return server


def head(server, path, key, size=1000):
    """What is answered to the head of a request, of whose body nothing comes."""
    host, port = server.url.removeprefix("http://").split(":")
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {size}", "", ""]
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(1 << 16)


def test_nothing_is_read_before_it_is_refused(shut):
    told = head(shut, "/v1/embeddings", "right")
    assert told.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 2\r\n" in told
    assert b"retry-after-ms: 2000\r\n" in told
    assert b"x-request-id: " in told


def test_keys_and_paths_are_looked_at_first(shut):
    assert head(shut, "/v1/embeddings", "wrong").startswith(b"HTTP/1.1 401 ")
    assert head(shut, "/v1/nowhere", "right").startswith(b"HTTP/1.1 404 ")


def test_others_are_served(shut):
    with shut.client("other") as client:
        assert client.post("/v1/chat/completions", json=said("x")).status_code == 200
    with shut.client("right") as client:
        assert client.get("/v1/models").status_code == 200
        assert client.post("/v1/chat/completions", json=said("x"), headers={HEADER: "batch"}).status_code == 200
        assert client.post("/v1/chat/completions", json=said("x", service_tier="flex")).status_code == 200
        assert client.post("/v1/chat/completions", content=b"no json").status_code == 429
        mix = {"sound": {"dtype": "float32", "shape": [1], "data": "AAAAAA=="}, "times": 1}
        assert client.post("/v1/generate", json={"model": "mixer", "request": mix}).status_code == 200
        asked = {"model": "vectors", "request": {"texts": ["a"]}}
        assert client.post("/v1/generate", json=asked).status_code == 429  # which says its model in its body


def test_a_refusal_shuts_the_door_and_refusals_are_counted(server, holder, latch, clock, monkeypatch):
    monkeypatch.setattr(server.door, "latch", latch)
    asked, listen = [], server.front.listen
    monkeypatch.setattr(server.front, "listen", lambda submit, told: (asked.append(submit), listen(submit, told)))
    counted = server.door.meters.refusals.labels("overloaded")._value
    with server.client("right") as client:
        with client.stream("POST", "/v1/chat/completions", json=said("slow" + "x" * 100, stream=True)) as first:
            before = counted.get()
            assert first.status_code == 200
            answers = [client.post("/v1/chat/completions", json=said("x")) for _ in range(5)]
            assert [one.status_code for one in answers] == [429] * 5
            assert len({one.text for one in answers}) == 1
            assert len(asked) == 2  # the one that is served, and the first that was not
        assert server.settles()
        assert counted.get() - before == 5
        clock.now += SHUT_S
        assert client.post("/v1/chat/completions", json=said("x")).status_code == 200


# ---------------------------------------------------------------- from the bytes of a request
BODY = b'{"model": "parrot", "messages": [{"role": "user", "content": "x"}]}'


def request(*more, line="POST /v1/chat/completions HTTP/1.1", body=BODY, size=None):
    lines = [line, "Host: x", "authorization: Bearer right", f"Content-Length: {size or len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def test_what_is_there_whole_is_refused_from_its_bytes(shut, holder, caplog):
    early = Early(shut.door)
    caplog.set_level("INFO", "mstar.requests")
    answer = early.answer(request("X-Request-Id: mine", "Connection: close"))
    head, _, body = answer.data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 429 Too Many Requests"
    assert {"X-Request-Id: mine", "Retry-After: 2", "Connection: close", f"Content-Length: {len(body)}"} <= {*lines}
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert answer.is_last
    assert not early.answer(request()).is_last
    told = caplog.records[0].told
    assert (told["id"], told["holder"], told["status"], told["code"]) == ("mine", holder, 429, "overloaded")
    assert (told["surface"], told["bytes_in"], told["bytes_out"]) == ("/v1/chat/completions", len(BODY), len(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"\xff\x00" * 100,
        request()[:60],
        request()[:-1],
        request() + request(),
        request(line="GET /v1/chat/completions HTTP/1.1"),
        request(line="POST /v1/chat/completions HTTP/1.0"),
        request(line="POST /v1/chat/completions?x=1 HTTP/1.1"),
        request(line="POST /v1/generate HTTP/1.1"),
        request(line="POST /v1/requests/mine/cancel HTTP/1.1"),
        request("Transfer-Encoding: chunked"),
        request("Expect: 100-continue"),
        request("Upgrade: h2c"),
        request(*(f"X-{number}: y" for number in range(2000))),
        request("Authorization: Bearer other"),
        request("Content-Length: 5"),
        request(size="+67"),
        request("Mstar-Pace: batch"),
        request("Mstar-Pace: now"),
        request(body=BODY.replace(b"}]}", b'}], "service_tier": "flex"}')),
        request().replace(b"right", b"wrong"),
        request().replace(b"right", b"other"),
    ],
)
def test_whatever_else_it_is_goes_the_usual_way(shut, data):
    assert Early(shut.door).answer(data) is None


def test_only_who_would_be_let_in_is_told_that_the_door_is_shut(shut, latch, clock, monkeypatch):
    early = Early(shut.door)
    monkeypatch.setattr(shut.door, "phase", Phase("draining"))
    assert early.answer(request()) is None
    monkeypatch.undo()
    monkeypatch.setattr(shut.door, "latch", latch)
    poor = Keys(["right"], Allowance(a_second=0.001, at_once=2))
    monkeypatch.setattr(shut.door, "keys", poor)
    assert [early.answer(request()) is None for _ in range(3)] == [False, False, True]
    monkeypatch.setattr(shut.door, "keys", Keys(["right"]))
    clock.now += SHUT_S
    assert early.answer(request()) is None


def test_a_connection_goes_on_after_that(shut, holder, latch, clock):
    host, port = shut.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for status in (b"429", b"429", b"200"):
            clock.now += SHUT_S * (status == b"200")
            connection.sendall(request())
            data = connection.recv(1 << 16)
            while not data.endswith(b"}"):
                data += connection.recv(1 << 16)
            assert data[9:12] == status
        latch.enter(holder, "parrot", Pace())(FULL)
        connection.sendall(request("Connection: close"))
        assert connection.recv(1 << 16)[9:12] == b"429"
        assert connection.recv(1) == b""
