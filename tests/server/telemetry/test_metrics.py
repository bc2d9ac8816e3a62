"""Health, readiness and metrics: real requests change every metric."""

import os
import platform
import time
from importlib.metadata import version

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from mstar.frontend.response_stream import Deliver, RequestEnded
from mstar.requests import ActionRequest, SpeechRequest
from mstar.server.robotics import openpi
from mstar.server.state import Phase, WorkerProcessStatus
from mstar.server.telemetry.metrics import (
    GAPS_MS,
    MAX_RENDER_BUDGET_S,
    MAX_RENDER_SHARE,
    CachedPage,
    Metrics,
    PlaybackMeter,
    ResponseMetrics,
)
from mstar.server.telemetry.process_metrics import ProcessMetrics
from mstar.wire import messages as m
from mstar.wire.stats import OpTotals
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator
from tests.server.toy_models import BOOM, Parrot
from tests.server.toy_robot_models import Arm, observation
from tests.server.toy_server import chat_body, run_toy_server
from tests.server.toy_speech_models import ToneSpeaker, ToneTranscriber

SECOND = np.zeros(24_000, np.float32)


def scrape(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


@pytest.fixture(scope="module")
def model_server():
    models = {
        "parrot": Parrot(),
        "talker": ToneSpeaker(),
        "scribe": ToneTranscriber(),
        "painter": ImageGenerator(),
        "arm": Arm(),
    }
    with serve_models(models) as started:
        yield started


class MetricDelta:
    """Change of all metrics since its creation."""

    def __init__(self, client):
        self._client = client
        self._before = scrape(client)

    def by(self):
        now = scrape(self._client)
        return {name: value - self._before.get(name, 0) for name, value in now.items()}


def test_health_and_readiness():
    with run_toy_server() as server, server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json()["phase"] == "ready"
        server.state.phase = Phase("starting", 1, 3)
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"phase": "starting", "done": 1, "total": 3})
        assert client.get("/ready?model=parrot").json()["state"] == "ready"
        refused = client.post("/v1/chat/completions", json=chat_body("x"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        server.state.drain()
        assert client.get("/ready").json()["phase"] == "draining"
        assert client.get("/health").status_code == 200


def test_requests_and_responses_are_counted():
    with run_toy_server() as server, server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("abc"))
        client.post("/v1/chat/completions", json=chat_body(f"a{BOOM}", stream=True))
        client.post("/v1/chat/completions", json=chat_body("x", n=99))
        client.get("/nowhere")
        got = scrape(client)
    chat = "/v1/chat/completions"
    assert got["mstar_requests_total", "/v1/chat/completions", "200"] == 1
    assert got["mstar_requests_total", chat, "500"] == 1  # its stream started with status 200 and then failed
    assert got["mstar_requests_total", chat, "400"] == 1
    assert got["mstar_requests_total", "404", "none"] == 1
    assert got["mstar_emissions_total", "Text", "parrot"] == 4
    assert got["mstar_time_to_first_output_seconds_count", "Text", "parrot"] == 2
    assert got["mstar_inter_output_seconds_count", "Text", "parrot"] == 2
    assert got["mstar_responses_total", "parrot", "stop"] == 1
    assert got["mstar_responses_total", "model_error", "parrot"] == 1
    assert got["mstar_response_duration_seconds_count", "parrot"] == 1
    assert got["mstar_prompt_tokens_total", "parrot", "text"] == 3
    assert got["mstar_generation_tokens_total", "parrot"] == 4
    assert got["mstar_responses_in_progress", "parrot"] == 0
    assert got["process_resident_memory_bytes",] > 1e6
    assert got["mstar_requests_in_progress",] == 0
    assert got["mstar_request_errors_total", "model_error"] == 1
    assert got["mstar_request_errors_total", "invalid_value"] == 1
    assert got["mstar_workers", "conductor"] == 1
    assert got["mstar_streams_open", "front"] == 0
    assert got["mstar_process_requests", "local"] == 0
    assert got["mstar_process_restarts_total", "conductor"] == 0


def test_responses_in_progress_and_disconnected_clients(model_server):
    body = chat_body("slow" + "x" * 200, stream=True)
    with model_server.client() as client:
        moved = MetricDelta(client)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert moved.by()["mstar_responses_in_progress", "parrot"] == 1
        assert model_server.wait_until_idle()
        assert moved.by()["mstar_responses_in_progress", "parrot"] == 0
        assert moved.by()["mstar_responses_total", "cancelled", "parrot"] == 1


def test_audio_is_measured(model_server):
    body = {"model": "talker", "input": "hello", "response_format": "pcm", "stream_format": "audio"}
    with model_server.client() as client:
        moved = MetricDelta(client)
        assert client.post("/v1/audio/speech", json=body).status_code == 200
        by = moved.by()
    assert by["mstar_audio_seconds_total", "talker"] == pytest.approx(0.5)
    assert by["mstar_time_to_first_output_seconds_count", "Audio", "talker"] == 1
    assert by["mstar_audio_realtime_factor_count", "talker"] == 1
    assert 0 < by["mstar_audio_realtime_factor_sum", "talker"] < 5
    assert by["mstar_audio_underrun_seconds_total", "talker"] >= 0
    assert by["mstar_audio_responses_total", "talker"] == 1
    assert by["mstar_audio_gapless_responses_total", "500", "talker"] == 1


def test_transcribed_audio_is_measured(model_server):
    import io

    import soundfile

    file = io.BytesIO()
    soundfile.write(file, SECOND[:12_000], 24_000, format="WAV")
    with model_server.client() as client:
        moved = MetricDelta(client)
        sent = {"file": ("a.wav", file.getvalue())}
        assert client.post("/v1/audio/transcriptions", data={"model": "scribe"}, files=sent).status_code == 200
        assert moved.by()["mstar_transcription_audio_seconds_total", "scribe"] == pytest.approx(0.5)


def test_images_are_counted_without_partial_ones(model_server):
    body = {"model": "painter", "prompt": "red", "size": "32x16", "n": 2, "stream": True, "partial_images": 1}
    with model_server.client() as client:
        moved = MetricDelta(client)
        client.post("/v1/images/generations", json=body | {"n": 1})
        by = moved.by()
    assert by["mstar_images_total", "painter"] == 1
    assert by["mstar_pixels_total", "painter"] == 32 * 16
    assert by["mstar_emissions_total", "Image", "painter"] == 2


def test_actions_are_timed_and_deadlines_counted(model_server):
    action = {"model": "arm", "prompt": "x", "observation": observation()}
    headers = {"Content-Type": "application/msgpack"}
    with model_server.client() as client:
        moved = MetricDelta(client)
        for delay in (0, 4000):  # in steps of 1/50 s; the first request has no deadline
            body = openpi.pack(action | {"inference_delay": delay})
            assert client.post("/v1/actions", content=body, headers=headers).status_code == 200
        by = moved.by()
    assert by["mstar_action_duration_seconds_count", "arm"] == 2
    assert by["mstar_action_deadlines_total", "arm"] == 1
    assert by["mstar_action_deadline_misses_total", "arm"] == 0


def test_open_websockets_are_counted(model_server):
    with model_server.client() as client:
        with connect(f"ws://127.0.0.1:{model_server.port}/v1/realtime?model=parrot"):
            assert scrape(client)["mstar_websockets_open", "/v1/realtime"] == 1
        deadline = time.monotonic() + 2
        while scrape(client)["mstar_websockets_open", "/v1/realtime"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert scrape(client)["mstar_websockets_open", "/v1/realtime"] == 0


def test_playback_resumes_after_an_underrun():
    playback = PlaybackMeter()
    for now, seconds in ((10.0, 1.0), (10.5, 1.0), (12.3, 1.0), (13.0, 0.5), (14.0, 1.0)):
        playback.add(seconds, now)
    # Plays from 10 to 12, gap until 12.3, plays until 13.8, gap until 14.
    assert playback.seconds == 4.5
    assert playback.underrun_s == pytest.approx(0.5)
    assert playback.longest_gap_s == pytest.approx(0.3)


def test_audio_gaps_are_compared_with_the_limit():
    now = [0.0]
    metrics = Metrics()
    response_metrics = ResponseMetrics(metrics, "m", SpeechRequest("x"), lambda: now[0])
    for moment in (0.5, 1.5, 2.62):
        now[0] = moment
        response_metrics.on_output(Deliver("r", "Audio", 0, SECOND, (("rate", 24_000),)))
    response_metrics.on_end(finished())

    def of(metric, *labels):
        return metric.labels("m", *labels)._value.get()

    assert of(metrics.audio_underrun) == pytest.approx(0.12)
    assert [of(metrics.audio_gapless_responses, str(gap)) for gap in GAPS_MS] == [0, 0, 0, 1, 1]
    ratio = {one.labels.get("le"): one.value for one in next(iter(metrics.audio_realtime_factor.collect())).samples}
    assert (ratio["0.8"], ratio["0.9"]) == (0, 1)  # 2.62 s for 3 s


@pytest.mark.parametrize(("seconds", "missed"), [(0.09, 0), (0.11, 1)])
def test_a_late_action_is_a_deadline_miss(seconds, missed):
    now = [0.0]
    metrics = Metrics()
    response_metrics = ResponseMetrics(metrics, "m", ActionRequest({}, delay=5), lambda: now[0])  # steps of 1/50 s
    now[0] = seconds
    response_metrics.on_output(Deliver("r", "Action", 0, SECOND, (("rate", 50),)))
    response_metrics.on_end(finished())
    assert metrics.action_deadline_misses.labels("m")._value.get() == missed


def finished():
    return RequestEnded("r", m.RequestFinished("r", "ok", {}, m.Value(None)))


def test_metrics_follow_the_conventions_of_prometheus(model_server):
    with model_server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("abc"))
        client.get("/nowhere")
        text = client.get("/metrics").text
    families = [*text_string_to_metric_families(text)]
    assert len({family.name for family in families}) == len(families), "each metric is described once"
    assert all(family.documentation and family.type != "unknown" for family in families)
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    assert len(set(series)) == len(series)
    counters = {sample.name for family in families if family.type == "counter" for sample in family.samples}
    assert all(name.endswith(("_total", "_created")) for name in counters)
    assert not [name for name, _ in series if name.endswith("_total") and name not in counters]
    assert not [labels for _, labels in series if any(" " in value for _, value in labels)]


def test_processes_tell_their_pid_memory_and_cpu_time(model_server):
    with model_server.client() as client:
        values = scrape(client)
    assert values["mstar_process_info", str(os.getpid()), "front"] == 1
    assert values["mstar_process_resident_memory_bytes", "front"] > 10 << 20
    assert values["mstar_process_cpu_seconds_total", "front", "frontend"] > 0
    assert values["mstar_build_info", *sorted((version("mstar-serve"), platform.python_version()))] == 1


def test_processes_have_their_role_and_workers_their_cpu_time_inside_ops():
    processes = ProcessMetrics()
    processes.update("conductor", {"cpu_us": 5_000_000}, "conductor")
    processes.update("w0", {"cpu_us": 3_000_000, "op_cpu_us": 2_500_000}, "worker")
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in processes.collect()
        for sample in family.samples
    }
    assert values == {
        ("mstar_process_cpu_seconds_total", "conductor", "conductor"): 5.0,
        ("mstar_process_cpu_seconds_total", "w0", "worker"): 3.0,
        ("mstar_process_op_cpu_seconds_total", "w0", "worker"): 2.5,
    }


def test_the_series_of_a_stopped_worker_are_removed(model_server):
    state = model_server.state
    for worker in ("retired", "restarting"):
        state.metrics.processes.update(worker, {"requests": 1})
        state.metrics.processes.set_restarts(worker, 1)
        state.op_stats[worker] = [OpTotals("parrot", "letters", "letter", 1)]
    statuses = {"retired": WorkerProcessStatus("stopped"), "restarting": WorkerProcessStatus("down")}
    state.process_statuses, before = lambda: statuses, state.process_statuses
    state.metrics.refreshed_at = float("-inf")
    try:
        with model_server.client() as client:
            text = client.get("/metrics").text
    finally:
        state.process_statuses = before
    assert "retired" not in text
    assert 'mstar_process_requests{process="restarting"} 1.0' in text
    assert 'mstar_op_batches_total{component="letters",model="parrot",op="letter",worker="restarting"} 1.0' in text


# ---------------------------------------------------------------- cost of the page
def test_a_flood_of_reads_renders_the_page_in_a_share_of_the_time():
    now, renders = 0.0, 0

    def render():
        nonlocal now, renders
        now, renders = now + 0.01, renders + 1
        return b"%d" % renders

    page = CachedPage(lambda: now)
    for _ in range(20_000):
        page.read(render)
        now += 0.0005
    assert renders * 0.01 == pytest.approx(MAX_RENDER_BUDGET_S + MAX_RENDER_SHARE * now, rel=0.05)


def test_a_page_that_is_read_now_and_then_is_new():
    now = 0.0
    page = CachedPage(lambda: now)
    for number in range(100):
        now += 1.0
        assert page.read(lambda number=number: b"%d" % number) == b"%d" % number
