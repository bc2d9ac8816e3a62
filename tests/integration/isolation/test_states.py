"""A state keeps the tenant of its request: forked, sent to another worker, after a retry and a restart."""

import os
import signal

import httpx2
import pytest

from mstar.frontend.core import MessageReceived, RequestOpened
from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.plan.planned_model import PlannedModel
from mstar.walk.load import load_model
from mstar.wire import messages as m
from tests.cli.test_serve import start_server, wait_ready
from tests.conductor.deployment import Deployment
from tests.frontend.test_core import CONDUCTOR, Harness, sent
from tests.integration.deployment_clients import add_frontend, module_of
from tests.integration.isolation import tenant_echo
from tests.integration.isolation.tenant_echo import EchoRequest, TenantEcho
from tests.integration.isolation.two_keys import KEYS, wait_until

FILE = f"{tenant_echo.__file__}:TenantEcho"
TENANTS = ("alice", "bob", "")


@pytest.fixture
def two_workers():
    """Front end of a deployment with two workers in this process."""
    model = TenantEcho()
    planned = PlannedModel(model, plan(model.graphs(), Placement({"echo": PlacementRule(("a", "b"))})))
    with InProcessLauncher({"echo": planned}) as deployment:
        yield add_frontend(deployment)


def texts(stream):
    return [emission.value for emission in stream]


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_forked_state_has_the_tenant_of_its_request(two_workers, tenant):
    assert texts(two_workers.open_stream("echo", EchoRequest(3), tenant=tenant)) == [f"<{tenant}>"] * 3


def test_a_state_that_is_sent_to_another_worker_has_the_tenant_of_its_request(two_workers):
    stream = two_workers.open_stream("echo", EchoRequest(1, is_merged=True), tenant="alice")
    assert [event.value for event in stream.turn(10)] == ["<alice>"]  # its state is at worker a
    busy = two_workers.open_stream("echo", EchoRequest(2000, 0.01), tenant="bob")  # now a has more load than b
    next(iter(busy))
    stream.send_input(None)
    merged = [event.value for event in stream.turn(10)]
    busy.close()
    assert merged == ["<alice><alice>"]
    spans = [two_workers.query_spans(m.Peer(name, 0), stream.rid).result(5).spans for name in "ab"]
    assert all(spans), "both workers had a part in it"


# ---------------------------------------------------------------- messages
def test_a_retry_after_a_lost_worker_has_the_tenant_of_the_request():
    deployment = Deployment({"talk": {"lm": "a"}}).start_all()
    deployment.submit("r", tenant="alice")
    assert [start.tenant for start in deployment.sent_of_kind(m.StartWalk)] == ["alice"]
    deployment.exit_process(m.Peer("a", 0))
    deployment.worker_up("a", 1)
    (again,) = deployment.sent_of_kind(m.StartWalk)
    assert (again.tenant, again.seats) == ("alice", (m.Peer("a", 1),))


def test_a_request_that_is_submitted_again_has_its_tenant():
    harness = Harness()
    harness.step(RequestOpened(m.Submit("r2", "chat", m.Value("hi"), "alice")))
    restarted = m.Peer(CONDUCTOR.name, 1)
    actions = harness.step(MessageReceived(restarted, m.Register()))
    tenants = {submit.rid: submit.tenant for _, submit in sent(actions, m.Submit)}
    assert tenants["r2"] == "alice"


# ---------------------------------------------------------------- processes
@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["local", "conductor"])
def test_a_request_that_is_computed_again_has_its_tenant(victim):
    with LocalLauncher({"echo": FILE}) as local:
        front_end, request = add_frontend(local), module_of(load_model(FILE)).EchoRequest(60, 0.01)
        iterators = {tenant: iter(front_end.open_stream("echo", request, tenant=tenant)) for tenant in TENANTS}
        begun = {tenant: [next(iterator).value] for tenant, iterator in iterators.items()}
        os.kill(local.pid(victim), signal.SIGKILL)
        for tenant, iterator in iterators.items():
            assert begun[tenant] + texts(iterator) == [f"<{tenant}>"] * 60
        wait_until(lambda: local.recent_exits)


MANIFEST = f"""
[models.echo]
model = "{FILE}"
[[api_keys.tenant]]
name = "alice"
env = "KEY_OF_ALICE"
[[api_keys.tenant]]
name = "bob"
env = "KEY_OF_BOB"
[[api_keys.tenant]]
name = "operator"
env = "KEY_OF_THE_OPERATOR"
role = "operator"
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_server_of_several_processes_keeps_two_tenants_apart(tmp_path, monkeypatch):
    """Outputs, requests and cancels; the operator unloads the model while a request is running."""
    manifest = tmp_path / "mstar.toml"
    manifest.write_text(MANIFEST)
    for tenant, key in KEYS.items():
        monkeypatch.setenv(f"KEY_OF_{tenant.upper()}", key)
    monkeypatch.setenv("KEY_OF_THE_OPERATOR", "operator-key")
    with start_server(manifest) as (process, url):
        wait_ready(process)
        alice, bob = (
            httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) for key in KEYS.values()
        )
        body = {"model": "echo", "request": {"steps": 100, "pause_s": 0.01}}
        with alice, bob:
            with alice.stream("POST", "/v1/generate", json=body, headers={"X-Request-Id": "one"}) as response:
                lines = response.iter_lines()
                next(lines)
                assert bob.post("/v1/requests/one/cancel").status_code == 404
                assert bob.post("/v1/models/echo/unload").status_code == 403
                operator = {"Authorization": "Bearer operator-key"}
                assert bob.post("/v1/models/echo/unload", headers=operator).json()["state"] == "unloaded"
                assert sum("<alice>" in line for line in lines) >= 99
            answer = bob.post("/v1/generate", json=body | {"request": {"steps": 3}})
            assert answer.text.count("<bob>") == 3
            assert "<alice>" not in answer.text
            assert "one" not in [record["id"] for record in bob.get("/v1/requests").json()["data"]]
