"""OTLP exporter: spans of walks and ops in the trace of the client; a slow or dead collector blocks no request."""

import asyncio
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mstar.cli import main
from mstar.server.admin.recent_requests import RequestRecord
from mstar.server.request_context import RequestContext
from mstar.server.telemetry import otlp_exporter
from mstar.server.telemetry.otlp_exporter import OtlpExporter
from tests.server.toy_models import BOOM
from tests.server.toy_server import chat_body, run_toy_server

NOOP = Path(__file__).parents[3] / "examples" / "noop.py"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP collector that stores the spans."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = []
        self.spans = []
        self.arrived = threading.Condition()

    def wait(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.spans) >= count, 5), [span.name for span in self.spans]
        return self.spans


class _CollectorHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        spans = [span for one in body.resource_spans for scope in one.scope_spans for span in scope.spans]
        with self.server.arrived:
            self.server.requests.append((self.path, body.resource_spans[0].resource))
            self.server.spans += spans
            self.server.arrived.notify_all()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def collector():
    with Collector() as started:
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


@contextmanager
def run_exporting_server(url):
    """A server that exports its spans to a URL."""
    with run_toy_server() as server:
        export = OtlpExporter(server.state, url)
        yield server
        server.state.bridge.loop.call_soon_threadsafe(export._task.cancel)


def span_attributes(span):
    values = {one.key: one.value for one in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def test_a_request_becomes_a_span_tree_in_the_trace_of_its_client(collector):
    with run_exporting_server(collector.url) as server, server.client() as client:
        body = chat_body("hello", modalities=["text", "audio"], audio={"voice": "x", "format": "wav"})
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        client.post("/v1/chat/completions", json=body, headers=headers)
        spans = {span.name: span for span in collector.wait(5)}
    collector.spans.clear()
    path, resource = collector.requests[0]
    assert path == "/v1/traces"
    assert ("service.name", "mstar") in [(one.key, one.value.string_value) for one in resource.attributes]
    assert spans.keys() == {"/v1/chat/completions", "say", "sing", "letters.letter", "letters.tone"}
    top = spans["/v1/chat/completions"]
    assert (top.kind, top.parent_span_id.hex()) == (top.SPAN_KIND_SERVER, PARENT)
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert [event.name for event in top.events] == ["attempt", "queued"]
    known = span_attributes(top)
    assert (known["gen_ai.operation.name"], known["gen_ai.request.model"]) == ("chat", "parrot")
    assert (known["http.response.status_code"], known["mstar.request_id"]) == (200, "mine")
    assert (known["mstar.emissions.text"], known["mstar.emissions.audio"]) == (5, 5)
    for walk, op in (("say", "letters.letter"), ("sing", "letters.tone")):
        assert spans[walk].parent_span_id == top.span_id
        assert spans[op].parent_span_id == spans[walk].span_id
        assert span_attributes(spans[op])["mstar.iterations"] == 5  # five steps, one span
        assert top.start_time_unix_nano <= spans[walk].start_time_unix_nano <= spans[op].start_time_unix_nano
        assert spans[op].end_time_unix_nano <= spans[walk].end_time_unix_nano + 10**7


def test_failures_are_errors_and_unsampled_traces_are_not_exported(collector):
    with run_exporting_server(collector.url) as server, server.client() as client:
        unwanted = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        client.post("/v1/chat/completions", json=chat_body("hello"), headers=unwanted)
        client.post("/v1/chat/completions", json=chat_body(f"a{BOOM}"), headers={"traceparent": "nonsense"})
        spans = collector.wait(3)
    failed = next(span for span in spans if span.name == "/v1/chat/completions")
    assert (failed.status.code, failed.status.message) == (failed.status.STATUS_CODE_ERROR, "model_error")
    assert {span.trace_id for span in spans} == {failed.trace_id}
    assert failed.parent_span_id == b""
    collector.spans.clear()


def test_a_failed_export_is_counted_and_blocks_no_request(monkeypatch):
    monkeypatch.setattr(otlp_exporter, "EXPORT_TIMEOUT_S", 0.2)
    with run_exporting_server("http://127.0.0.1:1") as server, server.client() as client:
        assert client.post("/v1/chat/completions", json=chat_body("hello")).status_code == 200
        while "mstar_spans_dropped_total 1.0" not in client.get("/metrics").text:
            pass


def test_spans_over_the_queue_limit_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(otlp_exporter, "MAX_QUEUED_REQUESTS", 2)
    monkeypatch.setattr(otlp_exporter, "EXPORT_TIMEOUT_S", 0.1)
    with run_toy_server() as server:
        export = OtlpExporter(server.state, "http://127.0.0.1:1")

        async def put():
            for _ in range(5):
                export.put(RequestRecord(RequestContext("x"), ""))

        asyncio.run(put())
        with server.client() as client:
            assert "mstar_spans_dropped_total 3.0" in client.get("/metrics").text


def test_invalid_configuration_fails_at_start(monkeypatch, capsys):
    assert main(["serve", str(NOOP), "--port", "0", "--otlp-endpoint", "localhost:4318"]) == 1
    assert capsys.readouterr().err == (
        "the OTLP endpoint localhost:4318 is not an HTTP URL\n  fix: pass the collector's URL, such as http://127.0.0.1:4318\n"
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "mstar.server.telemetry.otlp_exporter")
    assert main(["serve", str(NOOP), "--port", "0", "--otlp-endpoint", "http://localhost:4318"]) == 1
    assert capsys.readouterr().err == "`opentelemetry` is not installed\n  fix: pip install 'mstar-serve[otel]'\n"
