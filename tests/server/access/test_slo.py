"""SLO of a request: from its header, else its tenant, else the server; at every endpoint."""

import time

import numpy as np
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.config import RateLimit
from mstar.server.access.api_keys import ApiKeys, Tenant, hash_key
from mstar.server.access.slo import SLO_HEADER, apply_slo_header, slo_for_rate
from mstar.server.errors import ApiError
from mstar.server.robotics import openpi
from mstar.wire import messages as m
from mstar.wire.slo import Slo
from tests.server.model_server import serve_models
from tests.server.realtime.test_session import TEXT
from tests.server.toy_image_models import ImageGenerator, VideoGenerator
from tests.server.toy_robot_models import Arm, MultiTurnWorldModel, observation
from tests.server.toy_voice_model import Talker

SERVER, KEY = Slo(ttft_s=2.0, tokens_per_s=8.0), Slo(ttft_s=3.0, weight=5.0, tokens_per_s=9.0)
BEST_EFFORT = Slo(best_effort=True)
FRAMES = np.zeros((2, 3, 16, 16), np.float32)


# ---------------------------------------------------------------- the header
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", KEY),
        ("best_effort", Slo(3.0, best_effort=True, weight=5.0, tokens_per_s=9.0)),
        ("ttft=0.5", Slo(0.5, weight=5.0, tokens_per_s=9.0)),
        ("ttft=0.5, tokens_per_second=20", Slo(0.5, weight=5.0, tokens_per_s=20.0)),
        ("tokens_per_second=20,ttft=2", Slo(2.0, weight=5.0, tokens_per_s=20.0)),
        ("best_effort, tokens_per_second=4", Slo(3.0, best_effort=True, weight=5.0, tokens_per_s=4.0)),
    ],
)
def test_a_client_overrides_parts_of_the_slo(header, expected):
    assert apply_slo_header(KEY, header) == expected


def test_a_ttft_target_is_not_best_effort():
    assert apply_slo_header(BEST_EFFORT, "ttft=1.5") == Slo(1.5)
    assert apply_slo_header(BEST_EFFORT, "tokens_per_second=3") == Slo(best_effort=True, tokens_per_s=3.0)


@pytest.mark.parametrize(
    "header",
    [
        *("soon", "weight=9", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=inf", "ttft=nan", "ttft=1e9"),
        *(
            "ttft=10000",
            "ttft=1,ttft=2",
            "best_effort, ttft=1",
            "best_effort, best_effort",
            ",",
            "ttft=1,",
            "ttft=٣",
            "best_effort=1",
        ),
    ],
)
def test_an_invalid_slo_error_shows_the_syntax(header):
    with pytest.raises(ApiError) as refused:
        apply_slo_header(KEY, header)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_slo", SLO_HEADER)
    assert "`best_effort`, or `ttft=SECONDS`" in refused.value.message


def test_a_control_rate_becomes_a_ttft_target():
    assert slo_for_rate(BEST_EFFORT, "5") == Slo(0.2)
    for wrong in ("", "0", "often", "-5"):
        with pytest.raises(ApiError, match="hz: "):
            slo_for_rate(KEY, wrong)


# ---------------------------------------------------------------- endpoints
@pytest.fixture(scope="module")
def model_server():
    named = {
        hash_key("fast"): Tenant("fast", RateLimit(), KEY),
        hash_key("night"): Tenant("night", RateLimit(), BEST_EFFORT),
    }
    models = {
        "talker": Talker(),
        "arm": Arm(),
        "sleeper": MultiTurnWorldModel(),
        "filmer": VideoGenerator(),
        "painter": ImageGenerator(),
    }
    with serve_models(models, ApiKeys(["plain"], None, named, SERVER)) as started:
        yield started


@pytest.fixture
def submitted(model_server, monkeypatch):
    """SLOs of all submitted requests."""
    front = model_server.state.bridge.frontend
    slos, submit_request = [], front.submit

    def record_slo(submit: m.Submit, listener):
        slos.append(submit.slo)
        submit_request(submit, listener)

    monkeypatch.setattr(front, "submit", record_slo)
    return slos


CHAT = {"model": "talker", "messages": [{"role": "user", "content": "ab"}]}


def chat(model_server, key, slo=None, **more):
    with model_server.client(key) as client:
        return client.post("/v1/chat/completions", json=CHAT | more, headers={SLO_HEADER: slo} if slo else {})


def test_the_slo_of_the_request_overrides_the_tenant_and_the_server(model_server, submitted):
    for key, slo in (("plain", None), ("fast", None), ("fast", "ttft=0.25"), ("night", None), ("night", "ttft=4")):
        assert chat(model_server, key, slo).status_code == 200
    assert submitted == [SERVER, KEY, apply_slo_header(KEY, "ttft=0.25"), BEST_EFFORT, Slo(4.0)]


def test_an_invalid_slo_is_a_400_before_the_body_is_read(model_server, submitted):
    with model_server.client("plain") as client:
        answer = client.post("/v1/chat/completions", content=b"no json", headers={SLO_HEADER: "now"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_slo")
    assert "Mstar-SLO: 'now' is invalid" in answer.json()["error"]["message"]
    assert submitted == []


def test_flex_is_best_effort_and_the_tier_is_returned(model_server, submitted):
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="plain", max_retries=0) as client:
        create = client.chat.completions.create
        tiers = [create(**CHAT, service_tier=tier).service_tier for tier in ("flex", "auto", "priority")]
        chunks = [*create(**CHAT, service_tier="flex", stream=True)]
        default_tier = create(**CHAT).service_tier
    assert tiers == ["flex", "default", "default"]
    assert {one.service_tier for one in chunks} == {"flex"}
    assert default_tier is None
    assert [slo.best_effort for slo in submitted] == [True, False, False, True, False]


def test_a_video_is_best_effort_unless_its_client_waits_for_it(model_server, submitted):
    with model_server.client("fast") as client:
        for headers in ({}, {SLO_HEADER: "ttft=60"}):
            form = {"model": (None, "filmer"), "prompt": (None, "x"), "seconds": (None, "1")}
            assert client.post("/v1/videos", files=form, headers=headers).status_code == 200
        drawn = client.post("/v1/images/generations", json={"model": "painter", "prompt": "x", "size": "16x16"})
        assert drawn.status_code == 200
        while any(job["status"] != "completed" for job in client.get("/v1/videos").json()["data"]):
            time.sleep(0.01)
    assert sorted((slo.ttft_s, slo.best_effort) for slo in submitted) == [(3.0, False), (3.0, True), (60.0, False)]


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("", {}, SERVER),
        ("?hz=5", {}, Slo(0.2, tokens_per_s=8.0)),
        ("", {SLO_HEADER: "ttft=0.1"}, Slo(0.1, tokens_per_s=8.0)),
    ],
)
def test_a_robot_gets_an_slo_from_its_control_rate(model_server, submitted, query, headers, expected):
    headers = {"Authorization": "Api-Key plain"} | headers
    with connect(f"ws://127.0.0.1:{model_server.port}/{query}", additional_headers=headers, compression=None) as call:
        call.recv()
        for _ in range(2):
            call.send(openpi.pack(observation() | {"prompt": "fold"}))
            assert "actions" in openpi.unpack(call.recv())
    assert submitted == [expected] * 2


@pytest.mark.parametrize(("path", "slo"), [("/?hz=0", ""), ("/", "often"), ("/v1/realtime?model=talker", "often")])
def test_a_websocket_with_an_invalid_slo_is_not_opened(model_server, path, slo):
    headers = {"Authorization": "Bearer plain", SLO_HEADER: slo}
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{model_server.port}{path}", additional_headers=headers)
    assert refused.value.response.status_code == 400


@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
def test_a_realtime_session_has_the_slo_of_its_websocket(model_server, submitted):
    url, headers = f"ws://127.0.0.1:{model_server.port}/v1", {SLO_HEADER: "ttft=0.3"}
    client = OpenAI(api_key="plain", base_url=f"{model_server.url}/v1", websocket_base_url=url)
    with client, client.realtime.connect(model="talker", extra_headers=headers) as call:
        call.session.update(session=TEXT)
        content = [{"type": "input_text", "text": "ab"}]
        call.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        call.response.create()
        while call.recv().type != "response.done":
            pass
    assert submitted == [Slo(0.3, tokens_per_s=8.0)]


def test_a_world_has_the_slo_of_the_step_that_opens_it(model_server, submitted):
    with model_server.client("plain", **{"Content-Type": "application/msgpack"}) as client:
        begin = openpi.pack({"model": "sleeper", "observation": {"frames": FRAMES}})
        world = openpi.unpack(client.post("/v1/worlds", content=begin).content)["id"]
        for slo in ("ttft=0.4", "best_effort"):
            action = openpi.pack({"action": np.zeros(7, np.float32)})
            assert client.post(f"/v1/worlds/{world}/step", content=action, headers={SLO_HEADER: slo}).status_code == 200
        client.delete(f"/v1/worlds/{world}")
    assert submitted == [Slo(0.4, tokens_per_s=8.0)]
