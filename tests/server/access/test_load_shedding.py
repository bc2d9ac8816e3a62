"""Load shedding: the limit of requests, its shares, and requests that are recognized before they are parsed."""

import pytest

from mstar.frontend.response_stream import RequestEnded
from mstar.server.access.load_shedding import LoadShedder, RequestMatcher
from mstar.server.app import ENDPOINTS
from mstar.server.request_context import RequestContext
from mstar.server.state import ServerState
from mstar.server.telemetry.metrics import MetricsObserver, ResponseMetrics
from mstar.wire.messages import RequestFinished, Value

CHAT = "POST /v1/chat/completions HTTP/1.1"


def request(line=CHAT, *headers, body=b"{}", length=None):
    length = len(body) if length is None else length
    return "\r\n".join([line, "Host: x", *headers, f"content-Length: {length}", "", ""]).encode() + body


def shedder(limit):
    made = LoadShedder()
    made.limit = limit
    return made


def test_a_server_without_a_limit_has_a_slot_for_every_request():
    unlimited = LoadShedder()
    for _ in range(10_000):
        unlimited.take("")
    assert unlimited.has_slot("")
    assert not unlimited.is_crowded


def test_requests_without_keys_take_all_slots():
    full = shedder(3)
    slots = [full.take("") for _ in range(3)]
    assert not full.has_slot("")
    slots[0].release()
    assert full.has_slot("")


def test_a_slot_is_released_once():
    full = shedder(2)
    slot = full.take("")
    full.take("")
    slot.release()
    slot.release()
    full.take("")
    assert not full.has_slot("")


@pytest.mark.parametrize("end", ["ended", "cancelled"])
def test_the_slot_of_a_request_with_several_choices_is_released_by_the_last_one(end):
    full, state = shedder(1), ServerState({})
    record = state.recent_requests.begin(RequestContext("r-1"), "")
    record.context.slot = full.take("")
    metrics = {rid: ResponseMetrics(state.metrics, "parrot", None) for rid in ("a", "b")}
    observer = MetricsObserver(metrics, record, lambda _: None)
    observer.on_end(RequestEnded("a", RequestFinished("a", "ok", {}, Value(None))))
    assert not full.has_slot("")
    if end == "ended":
        observer.on_end(RequestEnded("b", RequestFinished("b", "ok", {}, Value(None))))
    else:
        observer.on_cancel("b", None)
    assert full.has_slot("")


def test_one_tenant_leaves_slots_to_another():
    shared = shedder(90)
    taken = 0
    while shared.has_slot("alice"):
        shared.take("alice")
        taken += 1
    assert taken == 80
    assert shared.is_crowded
    assert shared.has_slot("bob")


def test_a_complete_request_is_recognized_with_its_key():
    result = RequestMatcher(ENDPOINTS).match(request(CHAT, "authorization: Bearer k"))
    assert (result.endpoint.path, result.authorization) == ("/v1/chat/completions", "Bearer k")
    assert result.is_complete
    result = RequestMatcher(ENDPOINTS).match(request(CHAT, "X-Api-Key: k"))
    assert result.authorization == "Bearer k"


@pytest.mark.parametrize(
    "data", [request(length=3), request(length=1), request(CHAT, "Transfer-Encoding: chunked")[:-2]]
)
def test_a_request_with_a_part_of_its_body_is_not_complete(data):
    assert not RequestMatcher(ENDPOINTS).match(data).is_complete


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n",
        request("GET /health HTTP/1.1"),
        request("POST /v1/chat/completions HTTP/1.0"),
        request("POST /nowhere HTTP/1.1"),
        request("POST /v1/worlds/{world}/step HTTP/1.1"),
        request(CHAT, f"X-Long: {'x' * 10_000}"),
    ],
)
def test_other_data_takes_the_normal_path(data):
    assert RequestMatcher(ENDPOINTS).match(data) is None
