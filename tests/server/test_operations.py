"""Alive, ready, and what is counted."""

from prometheus_client.parser import text_string_to_metric_families

from mstar.server.door import Phase
from tests.server.models import BOOM
from tests.server.parts import said, serving


def figures(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


def test_it_is_ready_when_it_says_so():
    with serving() as server, server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json()["phase"] == "ready"
        server.door.phase = Phase("starting", 1, 3)
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"phase": "starting", "done": 1, "total": 3})
        refused = client.post("/v1/chat/completions", json=said("x"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        server.door.drain()
        assert client.get("/ready").json()["phase"] == "draining"
        assert client.get("/health").status_code == 200


def test_what_happened_is_counted():
    with serving() as server, server.client() as client:
        client.post("/v1/chat/completions", json=said("abc"))
        client.post("/v1/chat/completions", json=said(f"a{BOOM}", stream=True))
        client.post("/v1/chat/completions", json=said("x", n=99))
        client.get("/nowhere")
        got = figures(client)
    chat = "/v1/chat/completions"
    assert got["mstar_requests_total", "/v1/chat/completions", "200"] == 1
    assert got["mstar_requests_total", chat, "500"] == 1  # which began with 200, and failed
    assert got["mstar_requests_total", chat, "422"] == 1
    assert got["mstar_requests_total", "404", "none"] == 1
    assert got["mstar_emissions_total", "Text", "parrot"] == 4
    assert got["mstar_first_emission_seconds_count", "parrot"] == 2
    assert got["mstar_live_requests",] == 0
    assert got["mstar_refusals_total", "model_error"] == 1
    assert got["mstar_refusals_total", "invalid_value"] == 1
    assert got["mstar_held", "conductor", "workers"] == 1
    assert got["mstar_held", "front", "streams"] == 0
    assert any(key[:2] == ("mstar_held", "local") for key in got)
