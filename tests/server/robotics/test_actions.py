"""Tests of the robot endpoints: actions over HTTP, observation checks, openpi's codec and WebSocket protocol."""

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
from tests.server.toy_robot_models import FAULTY_SEED, Arm, observation

MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"arm": Arm()}) as started:
        yield started


def expected(observed, prompt="", seed=0):
    """Actions of an eager run of the model."""
    return Arm().run(ActionRequest(observed, prompt, seed)).emissions[-1].value


def to_json_array(array):
    return {"dtype": array.dtype.name, "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


def from_json(payload):
    return np.frombuffer(base64.b64decode(payload["data"]), payload["dtype"]).reshape(payload["shape"])


# ---------------------------------------------------------------- HTTP
def test_actions_in_json_match_the_model(model_server):
    observed = observation()
    fields = {name: to_json_array(array) for name, array in observed.items()}
    body = {"model": "arm", "prompt": "fold", "seed": 3, "observation": fields}
    with model_server.client() as client:
        response = client.post("/v1/actions", json=body).json()
    assert np.array_equal(from_json(response["actions"]), expected(observed, "fold", 3))
    assert response["rate"] == 50
    assert response["server_timing"]["infer_ms"] > 0


def test_actions_in_msgpack_with_real_time_chunking_fields(model_server):
    observed, leftover = observation(1), np.ones((10, 7), np.float32)
    body = {"model": "arm", "observation": observed, "prev_chunk_left_over": leftover, "inference_delay": 4}
    with model_server.client() as client:
        response = client.post("/v1/actions", content=openpi.pack(body | {"execution_horizon": 25}), headers=MSGPACK)
    assert np.array_equal(openpi.unpack(response.content)["actions"], expected(observed))
    last = model_server.models["arm"].seen[-1]
    assert (last.delay, last.horizon) == (4, 25)
    assert np.array_equal(last.leftover, leftover)


def test_the_robot_spec_is_returned(model_server):
    with model_server.client() as client:
        spec = client.get("/v1/actions/metadata?model=arm").json()
        assert client.get("/healthz").text == "OK"
    assert spec["observation"]["pose"] == {"dtype": "float32", "shape": [32]}
    assert spec["rate"] == 50


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"pose": None}, "invalid_observation", "send float32[32]"),
        ({"state": np.zeros(3, np.float32)}, "invalid_observation", "['state']"),
        ({"pose": np.zeros(31, np.float32)}, "invalid_observation", "float32[31]"),
        ({"pose": np.zeros(32)}, "invalid_observation", "float64[32]"),
        ({"pose": np.full(32, np.nan, np.float32)}, "invalid_value", "`pose` is not finite"),
        ({"pose": np.full(32, np.inf, np.float32)}, "invalid_value", "`pose` is not finite"),
    ],
)
def test_an_invalid_observation_reaches_no_model(model_server, change, code, reason):
    count = len(model_server.models["arm"].seen)
    body = {"model": "arm", "observation": observation() | change}
    with model_server.client() as client:
        response = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert response.status_code == 422
    assert response.json()["error"]["code"] == code
    assert reason in response.json()["error"]["message"]
    assert len(model_server.models["arm"].seen) == count


INVALID_NUMBERS = [2**63, 1.5, "1", True, None]
DELAYS = [(name, value) for name in ("inference_delay", "execution_horizon") for value in (-1, 5000, *INVALID_NUMBERS)]


@pytest.mark.parametrize(("name", "value"), DELAYS + [("seed", value) for value in INVALID_NUMBERS])
def test_invalid_numbers_are_rejected(model_server, name, value):
    body = {"model": "arm", "observation": observation(), name: value}
    with model_server.client() as client:
        response = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert response.status_code == 422


def test_an_action_that_is_not_finite_is_not_returned(model_server):
    body = {"model": "arm", "observation": observation(), "seed": FAULTY_SEED}
    with model_server.client() as client:
        response = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "model_error")


def test_failures_do_not_leak_internals(model_server):
    body = {"model": "arm", "observation": observation(), "prompt": "break"}
    with model_server.client() as client:
        response = client.post("/v1/actions", content=openpi.pack(body), headers=MSGPACK)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert model_server.is_idle()


# ---------------------------------------------------------------- openpi codec
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3, 4)])
def test_arrays_round_trip(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    decoded = openpi.unpack(openpi.pack({"a": [array], "b": "x"}))
    assert decoded["b"] == "x"
    assert decoded["a"][0].dtype == array.dtype
    assert np.array_equal(decoded["a"][0], array)
    assert decoded["a"][0].shape == shape


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
def test_an_invalid_array_is_rejected(tree):
    with pytest.raises(BadArray):
        openpi.unpack(msgspec.msgpack.encode(tree))


def test_invalid_msgpack_is_rejected():
    for data in (b"", b"\xc1", b"\x91" * 100_000, openpi.pack(observation())[:-3]):
        with pytest.raises(BadArray):
            openpi.unpack(data)


# ---------------------------------------------------------------- WebSocket
def test_a_websocket_follows_the_openpi_protocol(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as socket:
        assert openpi.unpack(socket.recv())["rate"] == 50
        for number in range(2):
            observed = observation(number)
            socket.send(openpi.pack(observed | {"prompt": "fold"}))
            response = openpi.unpack(socket.recv())
            assert np.array_equal(response["actions"], expected(observed, "fold", number))
            assert ("prev_total_ms" in response["server_timing"]) == bool(number)


@pytest.mark.parametrize(
    "message", [openpi.pack({"pose": 1}), b"\xc1", "text", openpi.pack(observation() | {"prompt": "break"})]
)
def test_an_error_is_a_text_message_and_closes_the_connection(model_server, message):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as socket:
        socket.recv()
        socket.send(message)
        error = socket.recv()
        assert isinstance(error, str)
        assert "secret" not in error
        with pytest.raises(ConnectionClosedError) as closed:
            socket.recv()
    assert closed.value.rcvd.code == 1011


def test_a_robot_authenticates_as_openpi_does():
    with serve_models({"arm": Arm()}, ApiKeys(["right"])) as model_server:
        for headers in ({}, {"Authorization": "Api-Key wrong"}):
            with pytest.raises(InvalidStatus) as raised:
                connect(f"ws://127.0.0.1:{model_server.port}", additional_headers=headers)
            assert raised.value.response.status_code == 401
        with connect(
            f"ws://127.0.0.1:{model_server.port}", additional_headers={"Authorization": "Api-Key right"}
        ) as socket:
            assert openpi.unpack(socket.recv())["rate"] == 50
            assert socket.response.headers["X-Request-Id"]


def test_a_disconnect_frees_all_request_state(model_server):
    with connect(f"ws://127.0.0.1:{model_server.port}", compression=None) as socket:
        socket.recv()
        socket.send(openpi.pack(observation()))
    assert model_server.wait_until_idle()


OPENPI_SCRIPT = """
import sys, numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
observation = dict(np.load(sys.argv[2]))
policy = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]))
assert policy.get_server_metadata()["rate"] == 50
actions = policy.infer(observation | {"prompt": "fold"})["actions"]
assert actions.shape == (50, 7), actions.shape
np.save(sys.argv[3], actions)
try:
    policy.infer({"pose": np.zeros(3)})
except RuntimeError as error:
    print(error)
"""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_the_openpi_client(model_server, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"  # openpi-client needs numpy < 2
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "openpi-client==0.1.2", "typing_extensions"],
        check=True,
        capture_output=True,
    )
    np.savez(tmp_path / "observation.npz", **observation())
    arguments = [str(model_server.port), str(tmp_path / "observation.npz"), str(tmp_path / "actions.npy")]
    completed = subprocess.run(
        [python, "-c", OPENPI_SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=50
    )
    assert completed.returncode == 0, completed.stderr
    assert "missing fields ['cameras']" in completed.stdout
    assert np.array_equal(np.load(tmp_path / "actions.npy"), expected(observation(), "fold"))
