"""The OpenAPI document: it has all routes, it is valid, and a fuzzer (Schemathesis) finds no violation of it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import jsonschema_rs
import numpy as np
import pytest
from pydantic import TypeAdapter
from starlette.routing import Route

from mstar import Component, Float32, Latents, Model, Tensor, op, walk
from mstar.requests import RolloutRequest
from mstar.server.access.api_keys import ApiKeys
from mstar.server.app import ENDPOINTS, build_app
from mstar.server.openapi import build_document
from mstar.server.state import ServerState
from tests.server import toy_speech_models
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator, VideoGenerator
from tests.server.toy_models import Parrot, Vectors
from tests.server.toy_robot_models import Arm
from tests.server.toy_server import chat_body
from tests.tiers import ci_cases

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
CHECKS += ["response_headers_conformance", "unsupported_method", "ignored_auth", "missing_required_header"]
MODELS = {
    "ChatBody": ["parrot"],
    "CompletionBody": ["parrot"],
    "ResponsesBody": ["parrot"],
    "MessagesBody": ["parrot"],
    "EmbeddingBody": ["vectors"],
    "SpeechBody": ["voice"],
    "TranscriptionForm": ["scribe"],
    "ImageBody": ["painter"],
    "ImageEditForm": ["painter"],
    "VideoForm": ["filmer"],
    "GenerateBody": ["echo"],
}
"""Valid model names by body schema, so that a fuzzer gets past the model lookup."""


@dataclass
class EchoRequest:
    """One field of every JSON type."""

    number: int
    share: float = 0.5
    texts: list[str] = field(default_factory=list)
    mode: Literal["a", "b"] | None = None
    more: dict[str, Any] = field(default_factory=dict)


class StepOp(Component):
    @op
    def grain(self, step: int) -> Float32[Tensor, "2"]:
        return np.full(2, step, np.float32)


class Echo(Model):
    """Returns its request and rolls out constant latents: no valid request makes it fail."""

    def __init__(self) -> None:
        self.dust = StepOp()

    @walk
    def fall(self, step: int) -> Iterator[Latents]:
        yield Latents(self.dust.grain(step))

    async def route(self, request: EchoRequest | RolloutRequest) -> Any:
        if isinstance(request, EchoRequest):
            return asdict(request)
        for step in range(len(request.actions)):
            await self.fall(step)
        return None


def serve_all_models():
    models = {
        "parrot": Parrot(),
        "vectors": Vectors(),
        "voice": toy_speech_models.ToneSpeaker(),
        "scribe": toy_speech_models.ToneTranscriber(),
    }
    models |= {"painter": ImageGenerator(), "filmer": VideoGenerator(), "arm": Arm(), "echo": Echo()}
    return serve_models(models, ApiKeys(["k"]))


def test_every_route_is_in_the_document():
    document = build_document(ENDPOINTS)
    routes = build_app(ServerState({"parrot": Parrot()})).routes
    fuzzable_document = {(method.upper(), path) for path, one in document["paths"].items() for method in one}
    served = {(method, route.path_format) for route in routes if isinstance(route, Route) for method in route.methods}
    assert fuzzable_document == {(method, path) for method, path in served if method != "HEAD"}
    assert {*document["x-websockets"]} == {route.path for route in routes if not isinstance(route, Route)}
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len({*names}) == len(names)


def test_schemas_are_valid_and_all_references_resolve():
    document = build_document(ENDPOINTS)
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas


def test_bodies_and_errors_match_the_document(server):
    with server.client() as client:
        document = client.get("/openapi.json").json()
        assert document["openapi"] == "3.1.0"
        error = client.post("/v1/chat/completions", json=chat_body("x", temperature=9)).json()
        method_error = client.put("/v1/chat/completions")
    assert (method_error.status_code, method_error.headers["allow"]) == (405, "POST")

    def is_valid(name, value):
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        return jsonschema_rs.is_valid(schema, value)

    assert is_valid("Error", error)
    assert is_valid("Error", method_error.json())
    assert is_valid("ChatBody", chat_body("x", temperature=1))
    assert not is_valid("ChatBody", chat_body("x", temperature=9))
    assert not is_valid("ChatBody", {"model": "x"})


def fuzzable_document(client):
    """The OpenAPI document with valid names and ids, so that a fuzzer gets past the lookups."""
    document = client.get("/openapi.json").json()
    schemas, paths = document["components"]["schemas"], document["paths"]
    for name, models in MODELS.items():
        schemas[name]["properties"]["model"] = {"enum": models}
    for name in ("ImageBody", "ImageEditForm", "VideoForm"):
        schemas[name]["properties"]["size"] = {"enum": ["16x16", "64x32", "auto", "0x0", "-1x5", "1e3x2"]}
    schemas["GenerateBody"]["properties"]["request"] = TypeAdapter(EchoRequest).json_schema()
    del paths["/v1/events"]  # an endless stream; test_live_feed reads it
    del paths["/v1/traffic"]  # another one; tests/cli/test_capture.py reads it
    for name in ("graph", "load", "unload"):
        for one in paths[f"/v1/models/{{model}}/{name}"].values():
            one["parameters"][0]["schema"] = {"enum": ["parrot", "echo", "nobody"]}
    for path, model in (("/v1/actions", "arm"), ("/v1/worlds", "echo")):
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        content["schema"]["properties"] = {"model": {"enum": [model]}, "prompt": {"type": "string"}, "seed": {}}
        content["schema"]["properties"] |= {"observation": {"type": "object"}}
    video = {"model": (None, "filmer"), "prompt": (None, "x"), "seconds": (None, "1")}
    world = {"model": "echo", "observation": {}}
    response = {"model": "parrot", "input": "x", "background": True}
    responses = [client.post("/v1/responses", json=response).json()["id"] for _ in range(4)]
    known_values = {
        "video": [client.post("/v1/videos", files=video).json()["id"] for _ in range(4)],
        "world": [client.post("/v1/worlds", json=world).json()["id"] for _ in range(4)],
        "response": responses,
        "session": [*responses, "sess_gone"],
        "adapter": ["parrot:formal"],
        "stream": ["false", "true"],
        "order": ["asc", "desc"],
        "limit": ["1", "100"],
        "after": ["msg_1"],
        "id": [client.get("/v1/models").headers["x-request-id"]],
        "model": ["parrot", "arm"],
        "format": ["json", "chrome"],
        "variant": ["video"],
        "Mstar-SLO": ["best_effort", "ttft=0.5, tokens_per_second=20"],
    }
    for operations in paths.values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                parameter["schema"] = {"type": "string", "enum": [*known_values[parameter["name"]], "nowhere"]}
    return document


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("phases", "examples"), ci_cases([("fuzzing", 3), ("coverage,fuzzing,stateful", 6)], ("fuzzing", 3))
)
def test_schemathesis_finds_no_violation(tmp_path, caplog, phases, examples):
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(tmp_path / "openapi.json")]
    command += [f"--phases={phases}", f"--max-examples={examples}", "--seed=1", "--generation-database=none"]
    command += [
        f"--checks={','.join(CHECKS)}",
        "--continue-on-failure",
        "--request-timeout=60",
        "--no-color",
        "--workers=1",  # Hypothesis parses source code, and the parser of Python 3.11 fails now and then in two threads
    ]
    with caplog.at_level(logging.ERROR), serve_all_models() as served, served.client("k") as client:
        (tmp_path / "openapi.json").write_text(json.dumps(fuzzable_document(client)))
        run = [*command, f"--url={served.url}", "--header=Authorization: Bearer k"]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert served.wait_until_idle(3)
    assert done.returncode == 0, done.stdout[-6000:]
    assert not [record.getMessage() for record in caplog.records]
