"""Tenants without a server, and through the clients: eager runs, in-process front ends, `mstar run`, `mstar trace`."""

import asyncio

import pytest

from mstar.cli import main
from mstar.client import AsyncClient, Client, NotFound
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ChatRequest, Message
from tests.integration.deployment_clients import add_frontend
from tests.integration.isolation import tenant_echo
from tests.integration.isolation.tenant_models import EveryEndpoint
from tests.integration.isolation.two_keys import KEYS, chat

REQUEST = ChatRequest((Message("user", ("hello",)),))


@pytest.fixture
def front_end():
    """An in-process deployment without a server, and its model."""
    model = EveryEndpoint()
    with InProcessLauncher({"every": PlannedModel(model, plan(model.graphs(), None))}) as deployment:
        yield add_frontend(deployment), model


# ---------------------------------------------------------------- without a server
def test_an_eager_run_has_no_tenant():
    model = EveryEndpoint()
    model.run(REQUEST)
    assert {*model.recorder.calls} == {""}


def test_requests_of_an_in_process_front_end_have_the_tenant_they_are_opened_with(front_end):
    front, model = front_end
    for tenant in ("alice", "bob"):
        model.recorder.calls.clear()
        assert len([*front.open_stream("every", REQUEST, tenant=tenant)]) == 5
        assert {*model.recorder.calls} == {tenant}


def test_a_request_without_a_tenant_is_no_tenant_of_the_server(front_end):
    front, model = front_end
    assert len([*front.open_stream("every", REQUEST)]) == 5
    assert {*model.recorder.calls} == {""}


def test_mstar_run_loads_the_model_without_a_tenant(capsys):
    assert main(["run", f"{tenant_echo.__file__}:TenantEcho", "--json", '{"steps": 2}']) == 0
    assert capsys.readouterr().out.strip() == "<><>"


# ---------------------------------------------------------------- clients
def test_the_client_sends_requests_of_the_tenant_of_its_key(two_keys):
    recorder = two_keys.models["every"].recorder
    for tenant, key in KEYS.items():
        recorder.calls.clear()
        with Client(two_keys.url, key) as client:
            assert client.chat("every", "hello").result().text == "hello"
        assert {*recorder.calls} == {tenant}


def test_the_async_client_sends_requests_of_the_tenant_of_its_key(two_keys):
    async def send(key):
        async with AsyncClient(two_keys.url, key) as client:
            return (await client.chat("every", "hello").result()).text

    recorder = two_keys.models["every"].recorder
    for tenant, key in KEYS.items():
        recorder.calls.clear()
        assert asyncio.run(send(key)) == "hello"
        assert {*recorder.calls} == {tenant}


def test_the_client_cannot_read_a_trace_of_another_tenant(two_keys):
    with Client(two_keys.url, KEYS["alice"]) as alice, Client(two_keys.url, KEYS["bob"]) as bob:
        stream = alice.chat("every", "hello")
        stream.result()
        assert alice.trace(stream.request_id)["id"] == stream.request_id
        with pytest.raises(NotFound):
            bob.trace(stream.request_id)


def test_mstar_trace_lists_the_requests_of_its_key_only(two_keys, alice, capsys):
    chat(alice, "hello", "traced-1")
    outputs = {}
    for tenant, key in KEYS.items():
        assert main(["trace", "--url", two_keys.url, "--key", key]) == 0
        outputs[tenant] = capsys.readouterr().out
    assert "traced-1" in outputs["alice"]
    assert "traced-1" not in outputs["bob"]
    assert main(["trace", "--url", two_keys.url, "--key", KEYS["bob"], "traced-1"]) == 1


def test_mstar_run_with_a_url_is_the_tenant_of_its_key(two_keys, capsys):
    recorder = two_keys.models["plain"].recorder
    for tenant, key in KEYS.items():
        recorder.calls.clear()
        request = '{"text": "abc", "steps": 3}'
        assert main(["run", "plain", "--url", two_keys.url, "--key", key, "--json", request]) == 0
        assert capsys.readouterr().out
        assert {*recorder.calls} == {tenant}
