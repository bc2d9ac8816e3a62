"""What a request is promised: as its client says, else as its key says, else as the server says; on every surface."""

import time

import numpy as np
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.config import Allowance
from mstar.server import openpi
from mstar.server.keys import Holder, Keys, digest_of
from mstar.server.pacing import HEADER, at_rate, paced
from mstar.server.refusals import Refusal
from mstar.wire import messages as m
from mstar.wire.pace import Pace
from tests.server.test_realtime import TEXT
from tests.server.toys_drawn import Filmer, Painter
from tests.server.toys_house import housing
from tests.server.toys_robot import Arm, Sleeper, observation
from tests.server.toys_talk import Talker

SERVER, KEY = Pace(first_s=2.0, read=8.0), Pace(first_s=3.0, weight=5.0, read=9.0)
NIGHT = Pace(is_batch=True)
FRAMES = np.zeros((2, 3, 16, 16), np.float32)


# ---------------------------------------------------------------- the header
@pytest.mark.parametrize(
    ("wish", "wanted"),
    [
        ("", KEY),
        ("batch", Pace(3.0, is_batch=True, weight=5.0, read=9.0)),
        ("first=0.5", Pace(0.5, weight=5.0, read=9.0)),
        ("first=0.5, read=20", Pace(0.5, weight=5.0, read=20.0)),
        ("read=20,first=2", Pace(2.0, weight=5.0, read=20.0)),
        ("batch, read=4", Pace(3.0, is_batch=True, weight=5.0, read=4.0)),
    ],
)
def test_a_client_says_what_it_wants_and_the_rest_is_as_it_was(wish, wanted):
    assert paced(KEY, wish) == wanted


def test_who_wants_something_soon_is_no_batch():
    assert paced(NIGHT, "first=1.5") == Pace(1.5)
    assert paced(NIGHT, "read=3") == Pace(is_batch=True, read=3.0)


@pytest.mark.parametrize(
    "wish",
    [
        *("soon", "weight=9", "first", "first=", "first=0", "first=-1", "first=inf", "first=nan", "first=1e9"),
        *("first=10000", "first=1,first=2", "batch, first=1", "batch, batch", ",", "first=1,", "first=٣", "batch=1"),
    ],
)
def test_a_wish_that_cannot_be_read_is_told_how_it_is_written(wish):
    with pytest.raises(Refusal) as refused:
        paced(KEY, wish)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_pace", HEADER)
    assert "`batch`, or `first=SECONDS`" in refused.value.message


def test_a_robot_says_how_often_it_asks():
    assert at_rate(NIGHT, "5") == Pace(0.2)
    for wrong in ("", "0", "often", "-5"):
        with pytest.raises(Refusal, match="hz: "):
            at_rate(KEY, wrong)


# ---------------------------------------------------------------- every surface
@pytest.fixture(scope="module")
def house():
    named = {
        digest_of("fast"): Holder("fast", Allowance(), KEY),
        digest_of("night"): Holder("night", Allowance(), NIGHT),
    }
    models = {"talker": Talker(), "arm": Arm(), "sleeper": Sleeper(), "filmer": Filmer(), "painter": Painter()}
    with housing(models, Keys(["plain"], None, named, SERVER)) as started:
        yield started


@pytest.fixture
def submitted(house, monkeypatch):
    """The paces of all that conductors are asked for."""
    front = house.door.bridge.front
    paces, listen = [], front.listen

    def listening(submit: m.Submit, listener):
        paces.append(submit.pace)
        listen(submit, listener)

    monkeypatch.setattr(front, "listen", listening)
    return paces


CHAT = {"model": "talker", "messages": [{"role": "user", "content": "ab"}]}


def chat(house, key, pace=None, **more):
    with house.client(key) as client:
        return client.post("/v1/chat/completions", json=CHAT | more, headers={HEADER: pace} if pace else {})


def test_the_request_comes_before_the_key_and_that_before_the_server(house, submitted):
    for key, pace in (("plain", None), ("fast", None), ("fast", "first=0.25"), ("night", None), ("night", "first=4")):
        assert chat(house, key, pace).status_code == 200
    assert submitted == [SERVER, KEY, paced(KEY, "first=0.25"), NIGHT, Pace(4.0)]


def test_a_wrong_wish_is_a_400_before_the_body_is_looked_at(house, submitted):
    with house.client("plain") as client:
        answer = client.post("/v1/chat/completions", content=b"no json", headers={HEADER: "now"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_pace")
    assert "Mstar-Pace: 'now' cannot be read" in answer.json()["error"]["message"]
    assert submitted == []


def test_flex_is_batch_and_the_tier_is_told_back(house, submitted):
    with OpenAI(base_url=f"{house.url}/v1", api_key="plain", max_retries=0) as client:
        ask = client.chat.completions.create
        tiers = [ask(**CHAT, service_tier=tier).service_tier for tier in ("flex", "auto", "priority")]
        chunks = [*ask(**CHAT, service_tier="flex", stream=True)]
        untold = ask(**CHAT).service_tier
    assert tiers == ["flex", "default", "default"]
    assert {one.service_tier for one in chunks} == {"flex"}
    assert untold is None
    assert [pace.is_batch for pace in submitted] == [True, False, False, True, False]


def test_a_video_is_batch_unless_its_client_waits_for_it(house, submitted):
    with house.client("fast") as client:
        for headers in ({}, {HEADER: "first=60"}):
            form = {"model": (None, "filmer"), "prompt": (None, "x"), "seconds": (None, "1")}
            assert client.post("/v1/videos", files=form, headers=headers).status_code == 200
        drawn = client.post("/v1/images/generations", json={"model": "painter", "prompt": "x", "size": "16x16"})
        assert drawn.status_code == 200
        while any(job["status"] != "completed" for job in client.get("/v1/videos").json()["data"]):
            time.sleep(0.01)
    assert sorted((pace.first_s, pace.is_batch) for pace in submitted) == [(3.0, False), (3.0, True), (60.0, False)]


@pytest.mark.parametrize(
    ("query", "headers", "wanted"),
    [
        ("", {}, SERVER),
        ("?hz=5", {}, Pace(0.2, read=8.0)),
        ("", {HEADER: "first=0.1"}, Pace(0.1, read=8.0)),
    ],
)
def test_a_robot_is_promised_its_actions_in_time(house, submitted, query, headers, wanted):
    headers = {"Authorization": "Api-Key plain"} | headers
    with connect(f"ws://127.0.0.1:{house.port}/{query}", additional_headers=headers, compression=None) as call:
        call.recv()
        for _ in range(2):
            call.send(openpi.pack(observation() | {"prompt": "fold"}))
            assert "actions" in openpi.unpack(call.recv())
    assert submitted == [wanted] * 2


@pytest.mark.parametrize(("path", "pace"), [("/?hz=0", ""), ("/", "often"), ("/v1/realtime?model=talker", "often")])
def test_a_call_with_a_wrong_wish_is_not_begun(house, path, pace):
    headers = {"Authorization": "Bearer plain", HEADER: pace}
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{house.port}{path}", additional_headers=headers)
    assert refused.value.response.status_code == 400


@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")
def test_a_talk_has_the_pace_of_its_call(house, submitted):
    url, headers = f"ws://127.0.0.1:{house.port}/v1", {HEADER: "first=0.3"}
    client = OpenAI(api_key="plain", base_url=f"{house.url}/v1", websocket_base_url=url)
    with client, client.realtime.connect(model="talker", extra_headers=headers) as call:
        call.session.update(session=TEXT)
        content = [{"type": "input_text", "text": "ab"}]
        call.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        call.response.create()
        while call.recv().type != "response.done":
            pass
    assert submitted == [Pace(0.3, read=8.0)]


def test_a_world_has_the_pace_of_the_step_that_opens_it(house, submitted):
    with house.client("plain", **{"Content-Type": "application/msgpack"}) as client:
        begin = openpi.pack({"model": "sleeper", "observation": {"frames": FRAMES}})
        world = openpi.unpack(client.post("/v1/worlds", content=begin).content)["id"]
        for pace in ("first=0.4", "batch"):
            action = openpi.pack({"action": np.zeros(7, np.float32)})
            assert client.post(f"/v1/worlds/{world}/step", content=action, headers={HEADER: pace}).status_code == 200
        client.delete(f"/v1/worlds/{world}")
    assert submitted == [Pace(0.4, read=8.0)]
