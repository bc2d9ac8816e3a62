"""Robots: an observation of nothing but zeros, over HTTP, and with openpi's own client if there is one."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from math import prod
from typing import Any
from urllib.parse import quote

from mstar.cli.conformance.target import CALL_TIMEOUT_S, Check, ConformanceTarget, ReportedError, require

PATH, WEBSOCKET_PATH = "/v1/actions", "/"
DTYPE_BYTES = {
    "bool": 1,
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
}
OPENPI_SCRIPT = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
policy = WebsocketClientPolicy(sys.argv[1], api_key=sys.argv[2] or None)
seen = policy.get_server_metadata()["observation"]
answer = policy.infer({name: np.zeros(one["shape"], one["dtype"]) for name, one in seen.items()})
print(answer["actions"].shape)
"""


def _robot_spec(site: ConformanceTarget) -> dict[str, Any]:
    answer = site.http.get("/v1/actions/metadata", params={"model": site.model})
    told = answer.json()
    if answer.status_code != 200:
        raise ReportedError(told["error"]["code"], told["error"]["message"])
    if "observation" not in told:
        raise ReportedError("unsupported", "the model does not say what its robot sees")
    return told["observation"]


def _act(site: ConformanceTarget) -> str:
    seen = {
        name: {"dtype": one["dtype"], "shape": one["shape"], "data": _zeros(one["dtype"], one["shape"])}
        for name, one in _robot_spec(site).items()
    }
    answer = site.http.post(PATH, json={"model": site.model, "observation": seen})
    require(answer.status_code == 200, f"{answer.status_code}: {answer.text[:200]}")
    actions = answer.json()["actions"]
    require(prod(actions["shape"]) > 0, "there is no action")
    return f"{actions['dtype']}{actions['shape']}"


def _zeros(dtype: str, shape: list[int]) -> str:
    return b64encode(bytes(prod(shape) * DTYPE_BYTES[dtype])).decode()


def _openpi(site: ConformanceTarget) -> str:
    _robot_spec(site)
    if site.openpi_python is None:
        raise ReportedError("unsupported", "not tried: --openpi-python names no python that has openpi-client")
    line = f"{site.socket_url}/?model={quote(site.model)}"
    command = [str(site.openpi_python), "-c", OPENPI_SCRIPT, line, site.key]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_TIMEOUT_S)
    require(done.returncode == 0, done.stderr.strip().rpartition("\n")[2])
    return done.stdout.strip()


CHECKS = (Check(PATH, "act", _act), Check(WEBSOCKET_PATH, "openpi", _openpi))
