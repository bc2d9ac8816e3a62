"""Traces of requests: over HTTP, in a terminal, and as Chrome traces for Perfetto."""

import json
import re
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mstar.cli import main
from mstar.cli.trace import format_requests, format_waterfall
from mstar.server.access.api_keys import ApiKeys
from mstar.server.admin import recent_requests
from mstar.server.admin.recent_requests import MAX_EMISSION_TIMES, MAX_REQUESTS, RecentRequests
from mstar.server.request_context import RequestContext
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server

CHAT = "/v1/chat/completions"


def ask(client, name, text="hello", **more):
    return client.post(CHAT, json=chat_body(text, **more), headers={"X-Request-Id": name})


def test_a_request_is_listed_and_traced(server):
    with server.client() as client:
        ask(client, "one", "slow hello")
        ask(client, "two/2?")  # an id with characters that a URL must escape
        listed = client.get("/v1/requests").json()["data"]
        trace = client.get("/v1/requests/one/trace").json()
        other = client.get("/v1/requests/two%2F2%3F/trace").json()
    assert [one["id"] for one in listed[:2]] == ["two/2?", "one"]
    head = {key: trace[key] for key in ("id", "model", "endpoint", "status")}
    assert head == {"id": "one", "model": "parrot", "endpoint": CHAT, "status": 200}
    assert abs(trace["started_at"] - time.time()) < 10
    spans = {(span["process"], span["kind"]): span for span in trace["spans"]}
    assert [*spans][:3] == [("front", "request"), ("conductor", "attempt"), ("conductor", "walk")]
    op = spans["local", "op"]
    assert (op["name"], op["walk"], op["attempt"], op["calls"]) == ("letters.letter", "say", 1, 10)
    assert 0.1 <= op["busy"] <= op["end"] - op["start"] <= trace["seconds"]
    assert spans["conductor", "queued"]["end"] <= op["start"] < op["end"] <= trace["seconds"]
    (emission,) = trace["emissions"]
    assert (emission["kind"], emission["count"], len(emission["first"])) == ("Text", 10, 10)
    assert emission["first"] == sorted(emission["first"])
    assert op["start"] < emission["first"][0] < emission["last"] <= trace["seconds"]
    assert other["id"] == "two/2?"


def test_the_trace_of_a_failed_request_names_the_exception_and_its_line(server):
    with server.client() as client:
        ask(client, "failed", f"a{BOOM}")
        trace = client.get("/v1/requests/failed/trace").json()
    spans = {(span["process"], span["kind"]): span for span in trace["spans"]}
    assert re.fullmatch(r"RuntimeError at toy_models\.py:\d+", spans["local", "op"]["text"])
    assert spans["conductor", "attempt"]["text"] == spans["local", "op"]["text"]
    assert "secret" not in json.dumps(trace), "a client can read its traces"
    assert any("RuntimeError at toy_models.py" in line for line in format_waterfall(trace, 120))


@pytest.mark.parametrize("is_exposed", [True, False])
def test_the_reason_of_a_failed_request_has_what_its_client_got(server, is_exposed, monkeypatch):
    monkeypatch.setattr(server.state, "expose_errors", is_exposed)
    with server.client() as client:
        ask(client, "good")
        sent = ask(client, "bad", f"a{BOOM}").json()["error"]["message"]
        bad, good = client.get("/v1/requests").json()["data"][:2]
        assert client.get("/v1/requests/bad/trace").json()["error"] == bad["error"]
    assert good["error"] is None
    assert bad["error"]["message"] == sent
    assert ("secret" in sent) is is_exposed
    assert re.fullmatch(r"toy_models\.py:\d+", bad["error"]["location"])
    known = {"type": "RuntimeError", "op": "letters.letter", "walk": "say", "process": "local"}
    assert {name: bad["error"][name] for name in known} == known


def test_a_request_that_did_not_reach_the_runtime_has_no_trace(server):
    with server.client() as client:
        ask(client, "wrong", n=99)
        answer = client.get("/v1/requests/wrong/trace")
        assert client.get("/v1/requests/wrong/trace?format=svg").json()["error"]["param"] == "format"
    assert answer.status_code == 404
    assert "fix: use an id from GET /v1/requests" in answer.json()["error"]["message"]


def test_only_the_tenant_of_a_request_sees_its_trace():
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server, server.client("a") as alice, server.client("b") as bob:
        ask(alice, "same", "alice")
        ask(bob, "same", "bo")
        ask(alice, "hers")
        counts = [client.get("/v1/requests/same/trace").json()["emissions"][0]["count"] for client in (alice, bob)]
        assert counts == [5, 2]
        assert [one["id"] for one in bob.get("/v1/requests").json()["data"]] == ["same"]
        assert bob.get("/v1/requests/hers/trace").status_code == 404
        assert bob.post("/v1/requests/hers/cancel").status_code == 404
        with server.client() as anonymous:
            assert anonymous.get("/v1/requests").status_code == 401
            assert anonymous.get("/v1/requests/same/trace").status_code == 401


def test_an_operator_sees_the_traces_of_all_tenants():
    keys = ApiKeys(["a", "b"], operator_keys=["o"])
    with run_toy_server(keys=keys) as server, server.client("a") as alice, server.client("o") as operator:
        ask(alice, "hers")
        ask(operator, "mine")
        records = operator.get("/v1/requests").json()["data"]
        assert [record["id"] for record in records] == ["mine", "hers"]
        assert records[1]["tenant"] == keys.authenticate("Bearer a").name
        assert operator.get("/v1/requests/hers/trace").json()["id"] == "hers"
        assert operator.post("/v1/requests/hers/cancel").status_code == 404  # it sees, and does not act for others
        assert alice.get("/v1/requests/mine/trace").status_code == 404
        assert "tenant" not in alice.get("/v1/requests").json()["data"][0]
        ask(alice, "bad", f"a{BOOM}")
        (hers, seen) = (client.get("/v1/requests").json()["data"][0]["error"] for client in (alice, operator))
        assert hers["message"].startswith("the model failed at this request")
        assert seen == hers | {"message": ""}  # it can quote the request


def running(client, name, steps=400):
    """Start a stream that runs for seconds; return its lines and the thread that reads it."""
    lines, begun = [], threading.Event()

    def read():
        body = chat_body("slow" + "x" * steps, stream=True)
        with client.stream("POST", CHAT, json=body, headers={"X-Request-Id": name}) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(5)
    return lines, thread


def test_a_running_request_can_be_inspected_and_cancelled(server):
    with server.client() as client, server.client() as other:
        lines, thread = running(client, "long")
        while (trace := other.get("/v1/requests/long/trace").json())["emissions"][0]["count"] < 40:
            time.sleep(0.02)
        assert trace["status"] is None
        walk = next(span for span in trace["spans"] if span["kind"] == "walk")
        assert walk["end"] == pytest.approx(trace["seconds"], abs=0.3)
        assert len(trace["emissions"][0]["first"]) == MAX_EMISSION_TIMES
        assert other.post("/v1/requests/long/cancel").json() == {"id": "long", "cancelled": True}
        thread.join(2)
        assert not thread.is_alive()
        assert any("cancelled" in line for line in lines[-4:])
        assert "data: [DONE]" not in lines
        while (ended := other.get("/v1/requests/long/trace").json())["status"] is None:
            time.sleep(0.01)
        assert ended["status"] == 499
        assert other.post("/v1/requests/long/cancel").json()["cancelled"] is False
    assert server.wait_until_idle()


def test_a_chrome_trace_is_valid(server):
    with server.client() as client:
        ask(client, "drawn", modalities=["text", "audio"], audio={"voice": "x", "format": "wav"})
        chrome = client.get("/v1/requests/drawn/trace?format=chrome").json()
    events = chrome["traceEvents"]
    assert chrome["displayTimeUnit"] == "ms"
    assert {event["ph"] for event in events} == {"M", "X", "i"}
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert names.keys() == {"front", "conductor", "local"}
    threads = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    assert len(set(threads)) == len(threads)
    placed = [event for event in events if event["ph"] in "Xi"]
    assert {(event["pid"], event["tid"]) for event in placed} == set(threads)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in placed)
    walks = sorted((one for one in events if one.get("cat") == "walk"), key=lambda one: one["ts"])
    assert [one["name"] for one in walks] == ["say", "sing"]
    assert walks[0]["ts"] + walks[0]["dur"] <= walks[1]["ts"] + 1
    assert sum(one["ph"] == "i" and one["name"] == "Audio" for one in events) == 5


def test_op_calls_are_counted():
    with run_toy_server() as server, server.client() as client:
        ask(client, "a", "slow", n=3)
        ask(client, "b", "abcd")
        families = text_string_to_metric_families(client.get("/metrics").text)
        got = {one.name: one for family in families for one in family.samples if one.name.startswith("mstar_op_")}
    calls = got["mstar_op_calls_total"]
    of = {"model": "parrot", "component": "letters", "op": "letter", "worker": "local"}
    assert calls.labels == of | {"walk": "say"}
    assert calls.value == 16
    assert got["mstar_op_batches_total"].labels == of
    assert 8 <= got["mstar_op_batches_total"].value <= 16
    assert got["mstar_op_seconds_total"].value >= 0.12
    assert got["mstar_op_wait_seconds_total"].value > 0


def test_deadlines_are_counted():
    with run_toy_server() as server, server.client() as client:
        ask(client, "sung", modalities=["text", "audio"], audio={"voice": "x", "format": "wav"})
        families = text_string_to_metric_families(client.get("/metrics").text)
        samples = {one.name: one for family in families for one in family.samples if "_deadline" in one.name}
    due = samples["mstar_deadlines_total"]
    assert due.labels == {"model": "parrot", "kind": "Audio", "worker": "local"}
    assert due.value == 5
    assert samples["mstar_deadline_misses_total"].value <= 5


# ---------------------------------------------------------------- recent requests
def test_recent_requests_are_bounded():
    lines = RecentRequests()
    for number in range(MAX_REQUESTS + 3):
        lines.begin(RequestContext(str(number % (MAX_REQUESTS + 2))), "")  # the last one has the id of the first
        lines.end(lines.attach("m", "t", [f"r{number}"]))
    assert len(lines.for_tenant("t")) == MAX_REQUESTS
    assert [*lines.for_tenant("t")[0].rids] == [f"r{MAX_REQUESTS + 2}"]
    assert lines.find("t", "1") is None
    assert lines.find("", "0") is None
    assert [*lines.find("t", "0").rids] == [f"r{MAX_REQUESTS + 2}"]


def test_a_tenant_does_not_evict_the_records_of_another():
    lines = RecentRequests()
    lines.begin(RequestContext("kept"), "")
    lines.attach("m", "alice", ["r"])
    for number in range(MAX_REQUESTS + 3):
        lines.begin(RequestContext(str(number)), "")
        lines.end(lines.attach("m", "bob", [f"r{number}"]))
    assert [*lines.find("alice", "kept").rids] == ["r"]
    assert [tenant for tenant, _ in lines.in_progress()].count("alice") == 1
    assert len(lines.for_tenant("bob")) == MAX_REQUESTS


def test_a_request_starts_and_ends_without_a_search_among_those_in_progress():
    """Thousands of slow clients of one tenant are in progress, and each new request trims its buffer."""

    class Records(dict):
        searched = 0

        def items(self):
            self.searched += 1
            return super().items()

        values = items

    lines = RecentRequests()
    for number in range(2 * MAX_REQUESTS):
        lines.begin(RequestContext(f"slow {number}"), "")
        lines.attach("m", "t", [f"s{number}"])
    records = lines._records["t"] = Records(lines._records["t"])
    for number in range(3):
        lines.begin(RequestContext(str(number)), "")
        lines.end(lines.attach("m", "t", [f"r{number}"]))
    assert records.searched == 0
    assert len(records) == 2 * MAX_REQUESTS


def test_a_request_in_progress_is_never_dropped():
    lines = RecentRequests()
    records = []
    for number in range(2 * MAX_REQUESTS):
        lines.begin(RequestContext(str(number)), "")
        records.append(lines.attach("m", "", [f"r{number}"]))
    assert [*lines.find("", "0").rids] == ["r0"]
    assert len(lines.for_tenant("")) == 2 * MAX_REQUESTS
    for record in records[1:]:
        lines.end(record)
    assert len(lines.for_tenant("")) == MAX_REQUESTS
    assert [*lines.find("", "0").rids] == ["r0"]


def test_delivery_times_are_bounded():
    entry = recent_requests.RequestRecord(RequestContext("x"), "")
    for number in range(1000):
        entry.record_delivery("Text", float(number))
    entry.record_delivery("Audio", 5.0)
    text, audio = entry.content["emissions"]
    assert (text["count"], len(text["first"])) == (1000, MAX_EMISSION_TIMES)
    assert text["last"] == 999 - entry.started_at
    assert audio["first"] == [audio["last"]]


# ---------------------------------------------------------------- mstar trace
def run(server, *arguments):
    return main(["trace", "--url", server.url, *arguments])


def test_the_command_lists_shows_and_writes(server, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with server.client() as client:
        ask(client, "shown", "slow hello")
    assert run(server) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["STARTED", "DURATION", "STATUS", "MODEL", "ENDPOINT", "EMISSIONS", "ID"]
    assert first.split()[3:] == ["200", "parrot", CHAT, "10", "Text", "shown"]
    assert run(server, "shown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"shown  parrot at {CHAT}, status 200, 0.")
    assert any("letters.letter" in line and "10×" in line and "█" in line for line in lines)
    assert max(map(len, lines)) <= 100
    assert run(server, "shown", "-o", str(tmp_path / "x.json")) == 0
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]


def test_errors_of_the_command_have_a_fix(server, capsys, tmp_path):
    for wrong in (["none"], ["-o", "x.json"], ["--url", "file:///etc/passwd"], ["--url", "http://127.0.0.1:1"]):
        assert run(server, *wrong) == 1
        assert "\n  fix: " in capsys.readouterr().err
    with server.client() as client:
        ask(client, "unwritten")
    assert run(server, "unwritten", "-o", str(tmp_path / "no" / "x.json")) == 1
    assert "cannot be written" in capsys.readouterr().err
    with run_toy_server(keys=ApiKeys(["k"])) as locked:
        assert run(locked) == 1
        assert "fix: pass --key" in capsys.readouterr().err
        assert run(locked, "--key", "k") == 0
    assert capsys.readouterr().out == "no requests yet\n"


def span(name, start, end, **more):
    empty = {"process": "local", "kind": "op", "attempt": 1, "calls": 0, "busy": 0, "waited": 0, "batch": 0, "text": ""}
    return empty | {"name": name, "start": start, "end": end} | more


def test_a_waterfall_is_to_scale():
    spans = [span("a", 0.0, 1.0), span("b", 0.5, 0.75, calls=3, batch=2), span("c", 0.5, 0.5, attempt=2)]
    emissions = [{"kind": "Text", "count": 2, "first": [0.25, 0.5], "last": 0.5}]
    trace = {"id": "r", "model": "m", "endpoint": "/s", "status": None, "seconds": 1.0}
    head, *bars = format_waterfall(trace | {"spans": spans, "emissions": emissions}, 60)
    assert head == "r  m at /s, running, 1.000 s"
    left, right = len("local    c #2"), len("250.0 ms 3× batch 2")
    width = 60 - left - right - 4
    cells = [bar.ljust(60)[left + 2 : left + 2 + width] for bar in bars]
    assert cells[0] == "█" * width
    assert [cells[1].count(" "), cells[1].index("█")] == [pytest.approx(0.75 * width, abs=1), width // 2]
    assert cells[2].rstrip() == " " * (width // 2) + "▏"
    assert "c #2" in bars[2]
    assert bars[3].endswith("2 emissions")


def test_an_empty_list_has_a_message():
    assert format_requests([]) == ["no requests yet"]
