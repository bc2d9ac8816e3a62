"""Embeddings, the list of models, and models in their own terms."""

import base64
import io
import json

import msgspec
import numpy as np
import pytest
from openai import BadRequestError, InternalServerError, NotFoundError, OpenAI

from mstar import LoadError, Model
from mstar.server.state import ServedModel


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


# ---------------------------------------------------------------- embeddings
@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors_in_every_form(openai, form):
    got = openai.embeddings.create(model="vectors", input=["banana", "kiwi"], **form)
    rows = [one.embedding for one in got.data]
    if form.get("encoding_format") == "base64":  # the client leaves as it is what it was asked for
        rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
    assert rows == [[6.0, 3.5], [4.0, 0.5]]
    assert [one.index for one in got.data] == [0, 1]


def test_one_text_is_one_vector(openai):
    assert openai.embeddings.create(model="vectors", input="a").data[0].embedding == [1.0, 1.5]


def test_a_vector_that_is_not_finite_is_no_answer(openai):
    with pytest.raises(InternalServerError, match="finite"):
        openai.embeddings.create(model="vectors", input="nan")


def test_vectors_of_another_size_are_refused(openai):
    with pytest.raises(BadRequestError, match="dimensions"):
        openai.embeddings.create(model="vectors", input="a", dimensions=1)


# ---------------------------------------------------------------- models
def test_models_say_where_they_are_served(openai):
    found = {model.id: model.model_dump() for model in openai.models.list()}
    assert {name: one["capabilities"] for name, one in found.items()} == {
        "parrot": ["chat"],
        "vectors": ["embedding"],
        "mixer": [],
        "free": [],
    }
    assert {"/v1/chat/completions", "/v1/generate"} <= {*found["parrot"]["endpoints"]}
    assert found["mixer"]["endpoints"] == ["/v1/generate"]
    assert openai.models.retrieve("mixer").id == "mixer"
    with pytest.raises(NotFoundError):
        openai.models.retrieve("nobody")


def test_a_route_whose_annotation_cannot_be_read_is_not_served():
    class Unread(Model):
        async def route(self, request: "NotImported") -> None: ...

    with pytest.raises(LoadError, match="NotImported"):
        ServedModel.from_model("unread", Unread())


# ---------------------------------------------------------------- generate
SOUND = np.array([1, -2, 3], np.float32)
ARRAY = {"dtype": "float32", "shape": [3], "data": base64.b64encode(SOUND.tobytes()).decode()}
REQUEST = {"sound": ARRAY, "times": 2, "mode": "soft", "gains": [1, 0.5]}


def post(server, **how):
    with server.client() as client:
        return client.post("/v1/generate", **how)


def events(text):
    pairs = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def array_of(payload):
    data = payload["data"] if isinstance(payload["data"], bytes) else base64.b64decode(payload["data"])
    return np.frombuffer(data, payload["dtype"]).reshape(payload["shape"])


def test_a_model_takes_its_own_request_type(server):
    got = events(post(server, json={"model": "mixer", "request": REQUEST}).text)
    assert [name for name, _ in got] == ["emission", "emission", "result"]
    assert [(told["kind"], told["index"], told["rate"]) for _, told in got[:2]] == [
        ("Audio", 0, 8000),
        ("Audio", 1, 8000),
    ]
    assert array_of(got[0][1]["value"]).tolist() == [0, 0, 0]
    assert array_of(got[1][1]["value"]).tolist() == [1, -2, 3]
    result = got[2][1]["result"]
    assert result["gains"] == [1, 0.5]
    assert array_of(result["sound"]).tolist() == [1, -2, 3]


def test_msgpack_in_and_out(server):
    body = msgspec.msgpack.encode({"model": "mixer", "request": REQUEST | {"sound": ARRAY | {"data": SOUND.tobytes()}}})
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    got, frames = io.BytesIO(post(server, content=body, headers=headers).content), []
    while size := got.read(4):
        frames.append(msgspec.msgpack.decode(got.read(int.from_bytes(size, "little"))))
    assert array_of(frames[1]["value"]).tolist() == [1, -2, 3]
    assert frames[2]["result"]["gains"] == [1, 0.5]


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def test_a_form_with_an_array_in_a_file(server):
    files = {"sound": ("sound.npy", npy(SOUND)), "gains": ("gains.json", b"[2]", "application/json")}
    got = events(post(server, data={"model": "mixer", "times": "1"}, files=files).text)
    assert array_of(got[0][1]["value"]).tolist() == [1, -2, 3]
    assert got[1][1]["result"]["gains"] == [2]


def test_a_walk_without_a_route_takes_its_arguments(server):
    prompt = {"dtype": "int64", "shape": [1, 2], "data": base64.b64encode(np.zeros(2, np.int64).tobytes()).decode()}
    got = events(post(server, json={"model": "free", "request": {"text": "ab", "steps": 2, "prompt": prompt}}).text)
    assert [array_of(told["value"]).tolist() for _, told in got[:2]] == [[97], [98]]
    assert got[2] == ("result", {"result": None})


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"times": 1.5}, "request.times"),
        ({"times": 2**63}, "request.times"),
        ({"times": True}, "request.times"),
        ({"mode": "x"}, "request.mode"),
        ({"gains": [1, "2"]}, "request.gains.1"),
        ({"gains": 3}, "request.gains"),
        ({"more": 3}, "request.more"),
        ({"sound": [1, 2]}, "request.sound"),
        ({"sound": ARRAY | {"shape": [4]}}, "request.sound"),
        ({"sound": ARRAY | {"shape": [3, 1]}}, "request.sound"),
        ({"sound": ARRAY | {"shape": [-3]}}, "request.sound"),
        ({"sound": ARRAY | {"shape": [2**62, 2**62]}}, "request.sound"),
        ({"sound": ARRAY | {"dtype": "int32"}}, "request.sound"),
        ({"sound": ARRAY | {"dtype": "object"}}, "request.sound"),
        ({"sound": ARRAY | {"data": "%%"}}, "request.sound"),
    ],
)
def test_what_a_route_does_not_take_is_refused(server, change, param):
    answer = post(server, json={"model": "mixer", "request": REQUEST | change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text


def test_what_is_missing_is_named(server):
    answer = post(server, json={"model": "mixer", "request": {"times": 1}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "request.sound")


@pytest.mark.parametrize(
    "content",
    [
        npy(np.zeros(3, ">f4")),
        npy(np.zeros(3, "U3")),
        npy(SOUND)[:-1],
        npy(SOUND).replace(b"(3,)", b"(9999999999,)").replace(b" " * 10, b"", 1),
        b"\x93NUMPY\x09\x00",
        b"",
        npy(SOUND)[:20],
    ],
)
def test_a_file_that_lies_is_refused(server, content):
    answer = post(server, data={"model": "mixer", "times": "1"}, files={"sound": ("sound.npy", content)})
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"model": 3}', b"[" * 100_000])
def test_bodies_that_are_none_are_refused(server, content):
    answer = post(server, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def test_a_failure_is_the_last_frame(server):
    body = {"model": "parrot", "request": {"messages": [{"role": "user", "parts": ["ab💥"]}]}}
    got = events(post(server, json=body).text)
    assert [name for name, _ in got] == ["emission", "emission", "error"]
    headers = {"Accept": "application/msgpack"}
    content = post(server, json=body, headers=headers).content
    assert b"model_error" in content
    assert b"secret" not in content
