"""Robots get the actions that their model computes, or hear why not; openpi's clients understand every byte."""

import base64
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from mstar.requests import ActionRequest
from mstar.server.access.api_keys import ApiKeys
from mstar.server.arrays import BadArray
from mstar.server.robotics import openpi
from tests.server.model_server import serve_models
from tests.server.toy_robot_models import Arm, observation

MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"arm": Arm()}) as started:
        yield started


def expected(seen, prompt="", seed=0):
    """What the model computes eagerly."""
    return Arm().run(ActionRequest(seen, prompt, seed)).emissions[-1].value


def to_json_array(array):
    return {"dtype": array.dtype.name, "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


def from_json(payload):
    return np.frombuffer(base64.b64decode(payload["data"]), payload["dtype"]).reshape(payload["shape"])


# ---------------------------------------------------------------- over HTTP
def test_actions_in_json_are_those_of_the_model(model_server):
    seen = observation()
    body = {"model": "arm", "prompt": "fold", "seed": 3, "observation": {k: to_json_array(v) for k, v in seen.items()}}
    with model_server.client() as client:
        answer = client.post("/v1/actions", json=body).json()
    assert np.array_equal(from_json(answer["actions"]), expected(seen, "fold", 3))
    assert answer["rate"] == 50
    assert answer["server_timing"]["infer_ms"] > 0


def test_actions_in_msgpack_with_what_real_time_chunking_needs(model_server):
    seen, left = observation(1), np.ones((10, 7), np.float32)
    body = {"model": "arm", "observation": seen, "prev_chunk_left_over": left, "inference_delay": 4}
    with model_server.client() as client:
        answer = client.post("/v1/actions", content=openpi.pack(body | {"execution_horizon": 25}), headers=MSGPACK)
    assert np.array_equal(openpi.unpack(answer.content)["actions"], expected(seen))
    last = model_server.models["arm"].seen[-1]
    assert (last.delay, last.horizon) == (4, 25)
    assert np.array_equal(last.leftover, left)


def test_a_robot_is_described(model_server):
    with model_server.client() as client:
        told = client.get("/v1/actions/metadata?model=arm").json()
        assert client.get("/healthz").text == "OK"
    assert told["observation"]["pose"] == {"dtype": "float32", "shape": [32]}
    assert told["rate"] == 50


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"pose": None}, "invalid_observation", "send float32[32]"),
        ({"state": np.zeros(3, np.float32)}, "invalid_observation", "['state']"),
        ({"pose": np.zeros(31, np.float32)}, "invalid_observation", "float32[31]"),
        ({"pose": np.zeros(32)}, "invalid_observation", "float64[32]"),
        ({"pose": np.full(32, np.nan, np.float32)}, "invalid_value", "`pose` is not finite"),
        ({"pose": np.full(32, np.inf, np.float32)}, "invalid_value", "`pose` is not finite"),
    ],
)
def test_a_wrong_observation_never_moves_a_robot(model_server, change, code, words):
    count = len(model_server.models["arm"].seen)
    body = {"model": "arm", "observation": observation() | change}
    with model_server.client() as client:
        answer = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == code
    assert words in answer.json()["error"]["message"]
    assert len(model_server.models["arm"].seen) == count


INVALID_NUMBERS = [2**63, 1.5, "1", True, None]
DELAYS = [(name, value) for name in ("inference_delay", "execution_horizon") for value in (-1, 5000, *INVALID_NUMBERS)]


@pytest.mark.parametrize(("name", "value"), DELAYS + [("seed", value) for value in INVALID_NUMBERS])
def test_bad_numbers_are_refused(model_server, name, value):
    body = {"model": "arm", "observation": observation(), name: value}
    with model_server.client() as client:
        answer = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert answer.status_code == 422


def test_an_action_that_is_not_finite_reaches_no_robot(model_server):
    body = {"model": "arm", "observation": observation(), "seed": 13}
    with model_server.client() as client:
        answer = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_error")


def test_failures_do_not_leak_internals(model_server):
    body = {"model": "arm", "observation": observation(), "prompt": "break"}
    with model_server.client() as client:
        answer = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert model_server.is_idle()


# ---------------------------------------------------------------- the codec
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3, 4)])
def test_arrays_come_back_as_they_were(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    back = openpi.unpack(openpi.pack({"a": [array], "b": "x"}))
    assert back["b"] == "x"
    assert back["a"][0].dtype == array.dtype
    assert np.array_equal(back["a"][0], array)
    assert back["a"][0].shape == shape


@pytest.mark.parametrize(
    "tree",
    [
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "|O8", b"shape": [1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "|V4", b"shape": [1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": ">f4", b"shape": [1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [2]},
        {b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": [1 << 62, 1 << 62]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [-1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4"},
        {b"__ndarray__": True, b"data": "1234", b"dtype": 4, b"shape": [1]},
        {1: 2},
    ],
)
def test_what_is_no_array_is_refused(tree):
    with pytest.raises(BadArray):
        openpi.unpack(msgspec.msgpack.encode(tree))


def test_bytes_that_are_no_msgpack_are_refused():
    for data in (b"", b"\xc1", b"\x91" * 100_000, openpi.pack(observation())[:-3]):
        with pytest.raises(BadArray):
            openpi.unpack(data)


# ---------------------------------------------------------------- over WebSocket
def test_a_websocket_follows_the_openpi_protocol(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as call:
        assert openpi.unpack(call.recv())["rate"] == 50
        for number in range(2):
            seen = observation(number)
            call.send(openpi.pack(seen | {"prompt": "fold"}))
            answer = openpi.unpack(call.recv())
            assert np.array_equal(answer["actions"], expected(seen, "fold", number))
            assert ("prev_total_ms" in answer["server_timing"]) == bool(number)


@pytest.mark.parametrize(
    "said", [openpi.pack({"pose": 1}), b"\xc1", "text", openpi.pack(observation() | {"prompt": "break"})]
)
def test_an_error_is_a_text_and_the_end(model_server, said):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as call:
        call.recv()
        call.send(said)
        error = call.recv()
        assert isinstance(error, str)
        assert "secret" not in error
        with pytest.raises(ConnectionClosedError) as closed:
            call.recv()
    assert closed.value.rcvd.code == 1011


def test_a_robot_authenticates_as_openpi_does():
    with serve_models({"arm": Arm()}, ApiKeys(["right"])) as model_server:
        for headers in ({}, {"Authorization": "Api-Key wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{model_server.port}", additional_headers=headers)
            assert refused.value.response.status_code == 401
        with connect(
            f"ws://127.0.0.1:{model_server.port}", additional_headers={"Authorization": "Api-Key right"}
        ) as call:
            assert openpi.unpack(call.recv())["rate"] == 50
            assert call.response.headers["X-Request-Id"]


def test_a_disconnected_robot_leaves_nothing(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as call:
        call.recv()
        call.send(openpi.pack(observation()))
    assert model_server.wait_until_idle()


OPENPI_SCRIPT = """
import sys, numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
seen = dict(np.load(sys.argv[2]))
policy = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]))
assert policy.get_server_metadata()["rate"] == 50
actions = policy.infer(seen | {"prompt": "fold"})["actions"]
assert actions.shape == (50, 7), actions.shape
np.save(sys.argv[3], actions)
try:
    policy.infer({"pose": np.zeros(3)})
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_real_client(model_server, tmp_path):
    python = tmp_path / "theirs" / "bin" / "python"  # it wants numpy < 2, and so an environment of its own
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "theirs"], check=True)
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "openpi-client==0.1.2", "typing_extensions"],
        check=True,
        capture_output=True,
    )
    np.savez(tmp_path / "seen.npz", **observation())
    arguments = [str(model_server.port), str(tmp_path / "seen.npz"), str(tmp_path / "actions.npy")]
    ended = subprocess.run(
        [python, "-c", OPENPI_SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=50
    )
    assert ended.returncode == 0, ended.stderr
    assert "lacks ['cameras']" in ended.stdout
    assert np.array_equal(np.load(tmp_path / "actions.npy"), expected(observation(), "fold"))
