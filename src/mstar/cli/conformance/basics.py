"""What is the same for every model: the catalogue, keys, names of requests, and what is said of mistakes."""

from __future__ import annotations

from openai import AuthenticationError, NotFoundError

from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

CHAT = "/v1/chat/completions"


def _list(site: ConformanceTarget) -> str:
    names = [model.id for model in site.openai.models.list()]
    require(site.model in names, f"the catalogue has {names}, and not {site.model}")
    return ""


def _retrieve(site: ConformanceTarget) -> str:
    require(site.openai.models.retrieve(site.model).id == site.model, "another model was given")
    return ""


def _wrong_key(site: ConformanceTarget) -> str:
    with site.openai_client("wrong-key") as client:
        try:
            client.models.list()
        except AuthenticationError:
            return ""
    require(not site.key, "any key is let in")
    raise ReportedError("unsupported", "the server asks for no key")


def _unknown_model(site: ConformanceTarget) -> str:
    try:
        site.openai.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    except NotFoundError as error:
        require(error.code == "model_not_found", f"the code is {error.code}")
        require(error.param == "model", f"the param is {error.param}")
        return ""
    require(False, "a model that is not there was served")
    return ""


def _bad_json(site: ConformanceTarget) -> str:
    answer = site.http.post(CHAT, content=b"{nonsense", headers={"Content-Type": "application/json"})
    require(answer.status_code == 400, f"the status is {answer.status_code}")
    error = answer.json()["error"]
    require(error["type"] == "invalid_request_error", f"the type is {error['type']}")
    require(error["code"] and error["message"] and "param" in error, "the error lacks a code, a message or a param")
    return ""


def _request_id(site: ConformanceTarget) -> str:
    answer = site.http.get("/v1/models", headers={"X-Request-Id": "conformance-1"})
    require(answer.headers.get("x-request-id") == "conformance-1", "the id of the request does not come back")
    require(site.http.get("/v1/models").headers.get("x-request-id"), "a request that has no id is given none")
    refused = site.http.post(CHAT, content=b"{", headers={"X-Request-Id": "conformance-2"})
    require(refused.headers.get("x-request-id") == "conformance-2", "a refusal lacks the id of its request")
    return ""


def _unknown_path(site: ConformanceTarget) -> str:
    answer = site.http.post("/v1/chat/completion", json={})
    require(answer.status_code == 404, f"the status is {answer.status_code}")
    require(CHAT in answer.json()["error"]["message"], "it does not say which path is meant")
    return ""


def _health(site: ConformanceTarget) -> str:
    for path in ("/health", "/ready"):
        require(site.http.get(path).status_code == 200, f"{path} is not 200")
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
