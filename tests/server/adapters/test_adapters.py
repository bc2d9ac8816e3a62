"""Adapters over HTTP: loaded, listed, named by requests and unloaded; the answers are those of merged weights."""

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import transformers as t

from mstar.models.causal_lm.causal_lm import CausalLanguageModel
from mstar.nn.lm.adapters.peft_folder import CONFIG_FILE
from mstar.requests import ChatRequest, Message, Sampling
from mstar.server.access.api_keys import ApiKeys
from mstar.server.arrays import from_json
from mstar.testing.parity import parity_all
from tests.models.causal_lm.causal_lm_tiny import library_answer, save
from tests.nn.lm.adapters.peft_folders import merged, write_adapter
from tests.server.toy_models import Parrot
from tests.server.toy_server import run_toy_server

QUESTION = "How are you?"
MAX_TOKENS = 6


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder of the base model."""
    return save(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def adapters(base):
    """Four adapters."""
    network = t.AutoModelForCausalLM.from_pretrained(base)
    return [write_adapter(base.parent / f"tone-{seed}", network, seed, size=2.0) for seed in range(4)]


@pytest.fixture(scope="module")
def answers(base, adapters):
    """Answers of the library with merged weights, and with those of the base model, by name of the adapter."""
    network, expected = t.AutoModelForCausalLM.from_pretrained(base), {}
    for adapter in adapters:
        folder = shutil.copytree(base, f"{adapter.path}-merged")
        merged(network, adapter).save_pretrained(folder)
        expected[adapter.name] = library_answer(Path(folder), QUESTION, MAX_TOKENS, do_sample=False)
    expected[""] = library_answer(base, QUESTION, MAX_TOKENS, do_sample=False)
    assert len({*expected.values()}) == len(expected), "each adapter changes the answer"
    return expected


@pytest.fixture
def server(base):
    with run_toy_server(models={"tiny": CausalLanguageModel(str(base)), "parrot": Parrot()}) as started:
        yield started


def ask(client, model):
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    response = client.post("/v1/chat/completions", json=body | {"max_tokens": MAX_TOKENS})
    if response.status_code != 200:
        return response.status_code, response.json()["error"]
    assert response.json()["model"] == model
    return response.json()["choices"][0]["message"]["content"]


def load(client, adapter, **more):
    return client.post("/v1/adapters", json={"name": adapter.name, "path": adapter.path} | more)


def wait_until_freed(server):
    """Wait until all KV pages and the state of all requests are free."""
    deadline, totals = time.monotonic() + 10, (".pages", ".prefix_cache_queries", ".prefix_cache_hits")
    while left := {name: count for name, count in server.request_stats().items() if not name.endswith(totals)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_eager_and_local_answers_are_equal(base, adapters):
    messages = (Message("user", (QUESTION,)),)
    chats = [ChatRequest(messages, Sampling(max_tokens=MAX_TOKENS, adapter=one)) for one in (*adapters, None)]
    parity_all(CausalLanguageModel(str(base)), chats, schedules=2)


def test_adapters_are_loaded_named_and_unloaded(server, adapters, answers):
    with server.client(timeout=60) as client:
        ids = [f"tiny:{adapter.name}" for adapter in adapters]
        status, error = ask(client, ids[0])
        assert (status, error["code"]) == (404, "model_not_found")
        for adapter in adapters:
            response = load(client, adapter)
            assert (response.status_code, response.json()["id"]) == (201, f"tiny:{adapter.name}")
            assert adapter.path not in response.text
        assert load(client, adapters[0]).status_code == 201, "loading the same files again changes nothing"
        assert [one["id"] for one in client.get("/v1/adapters").json()["data"]] == ids
        models = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
        assert [*models] == ["tiny", *ids, "parrot"]
        assert (models[ids[0]]["parent"], models["tiny"]["parent"]) == ("tiny", None)
        assert "/v1/chat/completions" in models[ids[0]]["endpoints"]
        assert client.get(f"/v1/models/{ids[0]}").json() == models[ids[0]]
        assert client.get(f"/v1/models/{ids[0]}/graph").json()["model"] == "tiny"
        names = [*answers] * 2
        got = {}
        threads = [
            threading.Thread(target=lambda n=n, name=name: got.update({n: ask(client, f"tiny:{name}".rstrip(":"))}))
            for n, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {n: answers[name] for n, name in enumerate(names)}
        assert client.delete(f"/v1/adapters/{ids[1]}").json() == {"id": ids[1], "object": "adapter", "deleted": True}
        status, error = ask(client, ids[1])
        assert status == 404
        assert ids[0] in error["message"]
        assert ask(client, ids[2]) == answers[adapters[2].name]
        wait_until_freed(server)


def test_generate_uses_the_adapter_of_the_model_name(server, adapters, answers):
    request = {"messages": [{"role": "user", "parts": [QUESTION]}], "sampling": {"max_tokens": MAX_TOKENS}}
    with server.client(timeout=60) as client:
        load(client, adapters[0])
        body = {"model": f"tiny:{adapters[0].name}", "request": request}
        lines = client.post("/v1/generate", json=body).text.splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        values = [event["value"] for event in events if event.get("kind") == "Text"]
        tokens = [int(token) for value in values for token in from_json(value).tolist()]
        assert server.state.served_models["tiny"].model.detokenize(tokens) == answers[adapters[0].name]
        forged = {"name": "x", "path": adapters[1].path, "checksum": adapters[1].checksum}
        body = {"model": "tiny", "request": request | {"sampling": {"adapter": forged}}}
        response = client.post("/v1/generate", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


def test_what_cannot_be_loaded_is_an_error(server, adapters, tmp_path):
    wide = t.LlamaForCausalLM(t.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=97))
    with server.client(timeout=60) as client:
        response = load(client, write_adapter(tmp_path / "wide", wide, 1))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")
        assert "the network needs" in response.json()["error"]["message"]
        response = client.post("/v1/adapters", json={"name": "none", "path": str(tmp_path)})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_adapter")
        assert load(client, adapters[0], model="parrot").status_code == 404
        assert load(client, adapters[0], model="tinny").json()["error"]["message"].count("did you mean `tiny`") == 1
        assert client.get("/v1/adapters").json()["data"] == []
        load(client, adapters[0])
        response = client.post("/v1/adapters", json={"name": adapters[0].name, "path": adapters[1].path})
        assert (response.status_code, response.json()["error"]["code"]) == (409, "adapter_exists")
        assert client.delete("/v1/adapters/tiny:none").status_code == 404
        name = f"tiny:{adapters[0].name}"
        assert client.post(f"/v1/models/{name}/unload").json()["error"]["param"] == "model"
        speech = client.post("/v1/audio/speech", json={"model": name, "input": "a", "voice": "b"})
        assert (speech.status_code, speech.json()["error"]["code"]) == (404, "endpoint_not_supported")


def test_loading_and_unloading_need_an_operator_key(base, adapters):
    keys, path = ApiKeys(["client"], operator_keys=["operator"]), f"/v1/adapters/tiny:{adapters[0].name}"
    with (
        run_toy_server(models={"tiny": CausalLanguageModel(str(base))}, keys=keys) as server,
        server.client("client", timeout=60) as client,
        server.client("operator", timeout=60) as operator,
    ):
        assert load(client, adapters[0]).status_code == 403
        assert load(operator, adapters[0]).status_code == 201
        assert [one["name"] for one in client.get("/v1/adapters").json()["data"]] == [adapters[0].name]
        assert client.delete(path).status_code == 403
        assert operator.delete(path).status_code == 200


@pytest.mark.slow
def test_loaded_and_unloaded_under_load(server, adapters, answers):
    check_loads(server, adapters, answers, 15)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_loaded_and_unloaded_a_hundred_times_under_load(server, adapters, answers):
    check_loads(server, adapters, answers, 100)


def check_loads(server, adapters, answers, turns):
    stop, wrong, count = threading.Event(), [], [0]

    def load_up(name):
        with server.client(timeout=60) as client:
            while not stop.is_set():
                count[0] += 1
                if (answer := ask(client, f"tiny:{name}".rstrip(":"))) != answers[name]:
                    wrong.append((name, answer))

    with server.client(timeout=60) as client:
        assert load(client, adapters[3]).status_code == 201
        threads = [threading.Thread(target=load_up, args=(name,)) for name in ("", adapters[3].name) * 2]
        for thread in threads:
            thread.start()
        try:
            for turn in range(turns):
                adapter = adapters[turn % 3]
                config = Path(adapter.path) / CONFIG_FILE
                fields = json.loads(config.read_text()) | {"lora_dropout": turn / 1000}
                config.write_text(json.dumps(fields))  # other files, so that they are read again
                assert load(client, adapter).status_code == 201
                assert ask(client, f"tiny:{adapter.name}") == answers[adapter.name]
                assert client.delete(f"/v1/adapters/tiny:{adapter.name}").status_code == 200
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert wrong == []
    assert count[0] >= turns
    wait_until_freed(server)
