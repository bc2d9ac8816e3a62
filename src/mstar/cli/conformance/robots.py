"""Conformance checks of robot actions: an all-zeros observation over HTTP and with openpi's own client."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from math import prod
from typing import Any
from urllib.parse import quote

from mstar.cli.conformance.target import CALL_TIMEOUT_S, Check, ConformanceTarget, ReportedError, require

PATH = "/v1/actions"
WEBSOCKET_PATH = "/"
DTYPE_BYTES = {
    "bool": 1,
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
}
OPENPI_SCRIPT = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
policy = WebsocketClientPolicy(sys.argv[1], api_key=sys.argv[2] or None)
specs = policy.get_server_metadata()["observation"]
response = policy.infer({name: np.zeros(spec["shape"], spec["dtype"]) for name, spec in specs.items()})
print(response["actions"].shape)
"""


def _robot_spec(target: ConformanceTarget) -> dict[str, Any]:
    response = target.http.get("/v1/actions/metadata", params={"model": target.model})
    metadata = response.json()
    if response.status_code != 200:
        raise ReportedError(metadata["error"]["code"], metadata["error"]["message"])
    if "observation" not in metadata:
        raise ReportedError("unsupported", "the model's metadata has no observation spec")
    return metadata["observation"]


def _act(target: ConformanceTarget) -> str:
    observation = {
        name: {"dtype": spec["dtype"], "shape": spec["shape"], "data": _zeros(spec["dtype"], spec["shape"])}
        for name, spec in _robot_spec(target).items()
    }
    response = target.http.post(PATH, json={"model": target.model, "observation": observation})
    require(response.status_code == 200, f"{response.status_code}: {response.text[:200]}")
    actions = response.json()["actions"]
    require(prod(actions["shape"]) > 0, "the response has no actions")
    return f"{actions['dtype']}{actions['shape']}"


def _zeros(dtype: str, shape: list[int]) -> str:
    return b64encode(bytes(prod(shape) * DTYPE_BYTES[dtype])).decode()


def _openpi(target: ConformanceTarget) -> str:
    _robot_spec(target)
    if target.openpi_python is None:
        raise ReportedError("unsupported", "skipped: pass --openpi-python with an interpreter that has openpi-client")
    url = f"{target.socket_url}/?model={quote(target.model)}"
    command = [str(target.openpi_python), "-c", OPENPI_SCRIPT, url, target.key]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_TIMEOUT_S)
    require(completed.returncode == 0, completed.stderr.strip().rpartition("\n")[2])
    return completed.stdout.strip()


CHECKS = (Check(PATH, "act", _act), Check(WEBSOCKET_PATH, "openpi", _openpi))
