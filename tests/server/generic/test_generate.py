"""Tests of the embeddings, models and generate endpoints."""

import base64
import io
import json

import msgspec
import numpy as np
import pytest
from openai import BadRequestError, InternalServerError, NotFoundError, OpenAI

from mstar import LoadError, Model
from mstar.server.generic import request_parsing
from mstar.server.state import ServedModel


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


# ---------------------------------------------------------------- embeddings
@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_in_every_encoding(openai, form):
    result = openai.embeddings.create(model="vectors", input=["banana", "kiwi"], **form)
    rows = [row.embedding for row in result.data]
    if form.get("encoding_format") == "base64":  # the SDK does not decode an explicit base64
        rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
    assert rows == [[6.0, 3.5], [4.0, 0.5]]
    assert [row.index for row in result.data] == [0, 1]


def test_one_text_has_one_embedding(openai):
    assert openai.embeddings.create(model="vectors", input="a").data[0].embedding == [1.0, 1.5]


def test_an_embedding_that_is_not_finite_is_an_error(openai):
    with pytest.raises(InternalServerError, match="finite"):
        openai.embeddings.create(model="vectors", input="nan")


def test_dimensions_are_rejected(openai):
    with pytest.raises(BadRequestError, match="dimensions"):
        openai.embeddings.create(model="vectors", input="a", dimensions=1)


# ---------------------------------------------------------------- models
def test_models_list_their_endpoints(openai):
    models = {model.id: model.model_dump() for model in openai.models.list()}
    assert {name: model["capabilities"] for name, model in models.items()} == {
        "parrot": ["chat"],
        "vectors": ["embedding"],
        "mixer": [],
        "free": [],
    }
    assert {"/v1/chat/completions", "/v1/generate"} <= {*models["parrot"]["endpoints"]}
    assert models["mixer"]["endpoints"] == ["/v1/generate"]
    assert openai.models.retrieve("mixer").id == "mixer"
    with pytest.raises(NotFoundError):
        openai.models.retrieve("unknown")


def test_a_route_with_an_unresolved_annotation_is_not_served():
    class Unresolved(Model):
        async def route(self, request: "NotImported") -> None: ...

    with pytest.raises(LoadError, match="NotImported"):
        ServedModel.from_model("unresolved", Unresolved())


# ---------------------------------------------------------------- generate
SOUND = np.array([1, -2, 3], np.float32)
ARRAY = {"dtype": "float32", "shape": [3], "data": base64.b64encode(SOUND.tobytes()).decode()}
REQUEST = {"sound": ARRAY, "times": 2, "mode": "soft", "gains": [1, 0.5]}


def post(server, **options):
    with server.client() as client:
        return client.post("/v1/generate", **options)


def events(text):
    pairs = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def to_array(payload):
    data = payload["data"] if isinstance(payload["data"], bytes) else base64.b64decode(payload["data"])
    return np.frombuffer(data, payload["dtype"]).reshape(payload["shape"])


def test_a_model_takes_its_own_request_type(server):
    result = events(post(server, json={"model": "mixer", "request": REQUEST}).text)
    assert [name for name, _ in result] == ["emission", "emission", "result"]
    assert [(content["kind"], content["index"], content["rate"]) for _, content in result[:2]] == [
        ("Audio", 0, 8000),
        ("Audio", 1, 8000),
    ]
    assert to_array(result[0][1]["value"]).tolist() == [0, 0, 0]
    assert to_array(result[1][1]["value"]).tolist() == [1, -2, 3]
    result = result[2][1]["result"]
    assert result["gains"] == [1, 0.5]
    assert to_array(result["sound"]).tolist() == [1, -2, 3]


def test_msgpack_in_and_out(server):
    body = msgspec.msgpack.encode({"model": "mixer", "request": REQUEST | {"sound": ARRAY | {"data": SOUND.tobytes()}}})
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    stream, frames = io.BytesIO(post(server, content=body, headers=headers).content), []
    while size := stream.read(4):
        frames.append(msgspec.msgpack.decode(stream.read(int.from_bytes(size, "little"))))
    assert to_array(frames[1]["value"]).tolist() == [1, -2, 3]
    assert frames[2]["result"]["gains"] == [1, 0.5]


def test_text_and_bytes_above_the_size_of_a_message_are_rejected(server, monkeypatch):
    monkeypatch.setattr(request_parsing, "MAX_INLINE_BYTES", 100)
    response = post(server, json={"model": "free", "request": {"x": ["a" * 60, "b" * 60]}})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
    assert "100 bytes" in response.json()["error"]["message"]
    sound = np.zeros(100, np.float32)
    payload = {"dtype": "float32", "shape": [100], "data": sound.tobytes()}
    body = msgspec.msgpack.encode({"model": "mixer", "request": REQUEST | {"sound": payload}})
    response = post(server, content=body, headers={"Content-Type": "application/msgpack"})
    assert response.status_code == 200, "arrays are not part of a message"


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def test_a_form_with_an_array_in_a_file(server):
    files = {"sound": ("sound.npy", npy(SOUND)), "gains": ("gains.json", b"[2]", "application/json")}
    result = events(post(server, data={"model": "mixer", "times": "1"}, files=files).text)
    assert to_array(result[0][1]["value"]).tolist() == [1, -2, 3]
    assert result[1][1]["result"]["gains"] == [2]


@pytest.mark.parametrize("request_part", ["[1]", "1", '"x"', "null"])
def test_a_form_whose_request_is_not_an_object_is_rejected(server, request_part):
    response = post(server, files={"model": (None, "mixer"), "request": (None, request_part)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "request"), response.text


def test_a_walk_without_a_route_takes_its_arguments(server):
    prompt = {"dtype": "int64", "shape": [1, 2], "data": base64.b64encode(np.zeros(2, np.int64).tobytes()).decode()}
    result = events(post(server, json={"model": "free", "request": {"text": "ab", "steps": 2, "prompt": prompt}}).text)
    assert [to_array(content["value"]).tolist() for _, content in result[:2]] == [[97], [98]]
    assert result[2] == ("result", {"result": None})


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
def test_a_request_of_the_wrong_type_is_rejected(server, change, param):
    response = post(server, json={"model": "mixer", "request": REQUEST | change})
    assert (response.status_code, response.json()["error"]["param"]) == (422, param), response.text


def test_a_missing_field_is_named(server):
    response = post(server, json={"model": "mixer", "request": {"times": 1}})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "request.sound")


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
def test_an_invalid_npy_file_is_rejected(server, content):
    response = post(server, data={"model": "mixer", "times": "1"}, files={"sound": ("sound.npy", content)})
    assert response.status_code == 422, response.text


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"model": 3}', b"[" * 100_000])
def test_invalid_bodies_are_rejected(server, content):
    response = post(server, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422), response.text


def test_a_failure_is_the_last_frame(server):
    body = {"model": "parrot", "request": {"messages": [{"role": "user", "parts": ["ab💥"]}]}}
    result = events(post(server, json=body).text)
    assert [name for name, _ in result] == ["emission", "emission", "error"]
    headers = {"Accept": "application/msgpack"}
    content = post(server, json=body, headers=headers).content
    assert b"model_error" in content
    assert b"secret" not in content
