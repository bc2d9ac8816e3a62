"""Conformance checks that do not depend on the model: model list, API keys, request ids, error responses."""

from __future__ import annotations

from openai import AuthenticationError, NotFoundError

from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

CHAT = "/v1/chat/completions"


def _list(target: ConformanceTarget) -> str:
    names = [model.id for model in target.openai.models.list()]
    require(target.model in names, f"the model list has {names}, not {target.model}")
    return ""


def _retrieve(target: ConformanceTarget) -> str:
    require(target.openai.models.retrieve(target.model).id == target.model, "the server returned another model")
    return ""


def _wrong_key(target: ConformanceTarget) -> str:
    with target.openai_client("wrong-key") as client:
        try:
            client.models.list()
        except AuthenticationError:
            return ""
    require(not target.key, "the server accepts any key")
    raise ReportedError("unsupported", "the server requires no key")


def _unknown_model(target: ConformanceTarget) -> str:
    try:
        target.openai.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    except NotFoundError as error:
        require(error.code == "model_not_found", f"the code is {error.code}")
        require(error.param == "model", f"the param is {error.param}")
        return ""
    require(False, "the server accepted an unknown model")
    return ""


def _bad_json(target: ConformanceTarget) -> str:
    response = target.http.post(CHAT, content=b"{nonsense", headers={"Content-Type": "application/json"})
    require(response.status_code == 400, f"the status is {response.status_code}")
    error = response.json()["error"]
    require(error["type"] == "invalid_request_error", f"the type is {error['type']}")
    require(error["code"] and error["message"] and "param" in error, "the error lacks a code, a message or a param")
    return ""


def _request_id(target: ConformanceTarget) -> str:
    response = target.http.get("/v1/models", headers={"X-Request-Id": "conformance-1"})
    require(response.headers.get("x-request-id") == "conformance-1", "the response does not echo the request id")
    require(target.http.get("/v1/models").headers.get("x-request-id"), "a request without an id gets none")
    rejected = target.http.post(CHAT, content=b"{", headers={"X-Request-Id": "conformance-2"})
    require(rejected.headers.get("x-request-id") == "conformance-2", "an error response lacks the request id")
    return ""


def _unknown_path(target: ConformanceTarget) -> str:
    response = target.http.post("/v1/chat/completion", json={})
    require(response.status_code == 404, f"the status is {response.status_code}")
    require(CHAT in response.json()["error"]["message"], "the error does not suggest the similar path")
    return ""


def _health(target: ConformanceTarget) -> str:
    for path in ("/health", "/ready"):
        require(target.http.get(path).status_code == 200, f"{path} does not return 200")
    return ""


CHECKS = (
    Check("", "models list", _list),
    Check("", "models retrieve", _retrieve),
    Check("", "wrong key", _wrong_key),
    Check("", "unknown model", _unknown_model),
    Check("", "bad JSON", _bad_json),
    Check("", "request id", _request_id),
    Check("", "unknown path", _unknown_path),
    Check("", "health and ready", _health),
)
