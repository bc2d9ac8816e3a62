"""`mstar bench serve` against real servers: it counts what its clients saw, shows it, and says what failed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from mstar import Action, Component, Float32, Model, Tensor, op, walk
from mstar.cli import main
from mstar.cli.bench import metrics
from mstar.cli.bench.records import LoadRun, RequestRecord, SloTarget
from mstar.cli.bench.report import render_report
from mstar.config import RuntimeConfig
from mstar.requests import ActionRequest
from mstar.server.access.api_keys import ApiKeys
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator
from tests.server.toy_models import Parrot, Vectors
from tests.server.toy_robot_models import Arm
from tests.server.toy_server import run_toy_server
from tests.server.toy_speech_models import ToneSpeaker, ToneTranscriber


class SlowActuator(Component):
    @op
    def move(self, seed: int) -> Float32[Tensor, "2 1"]:
        time.sleep(0.07)
        return np.zeros((2, 1), np.float32)


class SlowRobot(Model):
    """A robot that thinks for longer than one tick of 50 Hz."""

    def __init__(self) -> None:
        self.actuator = SlowActuator()

    @walk
    def act(self, seed: int) -> Iterator[Action]:
        yield Action(self.actuator.move(seed), rate=50)

    async def route(self, request: ActionRequest) -> None:
        await self.act(request.seed)

    def robot_spec(self):
        return {"observation": {"pose": {"dtype": "float32", "shape": [3]}}}


MODELS = "chat=parrot,speech=talker,transcriptions=scribe,images=painter,embeddings=vectors,robot=arm"


@pytest.fixture(scope="module")
def server():
    with run_toy_server() as started:
        yield started


@pytest.fixture(scope="module")
def model_server():
    toys = {"talker": ToneSpeaker(), "scribe": ToneTranscriber(), "painter": ImageGenerator(), "arm": Arm()}
    with serve_models({"parrot": Parrot(), "vectors": Vectors()} | toys) as started:
        yield started


@pytest.fixture
def bench(tmp_path):
    """Run the command; what it wrote."""

    def run(server, *flags):
        assert main(["bench", "serve", server.url, "--json", str(tmp_path / "x.json"), *flags]) == 0
        return json.loads((tmp_path / "x.json").read_text())["levels"]

    return run


# ---------------------------------------------------------------- loads
def test_clients_ask_again_when_they_have_their_answer(server, bench, capsys):
    before = len(server.parrot.seen)
    levels = bench(server, "--model", "parrot", "--mix", "chat=9", "--requests", "6", "--concurrency", "1,3")
    assert len(server.parrot.seen) - before == 1 + 6 + 6  # one is not counted
    assert [(one["load"], one["unit"]) for one in levels] == [(1, "clients"), (3, "clients")]
    for level in levels:
        chat = level["kinds"]["chat"]
        assert (chat["sent"], chat["completed"], chat["failed"], chat["rejected"]["count"]) == (6, 6, {}, 0)
        assert 0 < chat["ttft_s"]["p50"] <= chat["ttft_s"]["p99"] <= chat["duration_s"]["p99"] < level["seconds"]
        tokens = sum(record["tokens"] for record in level["records"])
        assert chat["tokens_per_s"] == pytest.approx(tokens / level["seconds"])
        assert all(0 < len(record["chunks"]) <= record["tokens"] for record in level["records"])
    alone = levels[0]["records"]
    assert all(earlier["ended_at"] <= later["sent_at"] for earlier, later in pairwise(alone))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["load", "kind", "ok", "rejected"]
    assert [line.split()[:4] for line in lines if " chat " in line] == [
        ["1", "clients", "chat", "6"],
        ["3", "clients", "chat", "6"],
    ]


def test_one_seed_asks_for_the_same(server, bench):
    requests = []
    for seed in ("1", "1", "2"):
        before = len(server.parrot.seen)
        bench(server, "--model", "parrot", "--requests", "4", "--concurrency", "1", "--seed", seed)
        requests.append([(ask.messages, ask.sampling.max_tokens) for ask in server.parrot.seen[before:]])
    assert requests[0] == requests[1] != requests[2]


def test_who_is_slow_delays_nobody_in_an_open_loop(server, bench, tmp_path):
    trace = tmp_path / "trace.jsonl"
    slow = {"at": 0.0, "kind": "chat", "text": "slow" + "!" * 40, "body": {"max_tokens": 40}}
    trace.write_text("\n".join(map(json.dumps, [slow, {"at": 0.1, "kind": "chat", "text": "quick"}])))
    (level,) = bench(server, "--model", "parrot", "--trace", str(trace))
    first, second = level["records"]
    assert second["due_at"] == 0.1 <= second["sent_at"] < second["ended_at"] < first["ended_at"]
    assert first["ended_at"] - first["sent_at"] > 40 * 0.01
    assert (first["tokens"], second["tokens"]) == (40, 5)


def test_a_rate_is_shared_out_as_the_mix_says(server, bench):
    flags = ("--model", "chat=parrot,embeddings=vectors", "--mix", "chat=1,embeddings=3", "--rate", "40,60")
    levels = bench(server, *flags, "--seconds", "0.3", "--burstiness", "0.2")
    for level, rate in zip(levels, (40, 60), strict=True):
        assert level["load"] == rate
        sent = {kind: figures["sent"] for kind, figures in level["kinds"].items()}
        shares = {"chat": 0.25 * 0.3 * rate, "embeddings": 0.75 * 0.3 * rate}
        assert sent == {kind: pytest.approx(share, abs=2) for kind, share in shares.items()}
        assert max(record["due_at"] for record in level["records"]) < 0.3


# ---------------------------------------------------------------- kinds
def test_every_kind_is_asked_and_understood(model_server, bench, tmp_path):
    mix = "chat=8,speech=8,transcriptions=8,images=8,embeddings=8,robot=1@4hz"
    report = tmp_path / "x.html"
    flags = ("--model", MODELS, "--mix", mix)
    (level,) = bench(model_server, *flags, "--seconds", "2", "--burstiness", "0.2", "--report", str(report))
    kinds = level["kinds"]
    assert level["load"] == 40
    assert all(one["completed"] == one["sent"] > 0 for kind, one in kinds.items() if kind != "robot")
    inputs = [record for record in level["records"] if record["kind"] == "speech"]
    spoken = sum(seconds for record in inputs for _, seconds in record["chunks"])
    assert kinds["speech"]["audio"]["audio_s_per_s"] == pytest.approx(spoken / kinds["speech"]["seconds"])
    letters = model_server.models["talker"].seen[-len(inputs) :]
    assert spoken == pytest.approx(sum(len(ask.text) for ask in letters) / 10, abs=0.02)
    assert kinds["transcriptions"]["rtf"]["p50"] < 1
    ticks = [record for record in level["records"] if record["kind"] == "robot"]
    assert all(later["due_at"] - earlier["due_at"] == pytest.approx(0.25) for earlier, later in pairwise(ticks))
    assert [record["chunks"][0][1] for record in ticks if not record["error"]][:2] == [50, 50]
    words = report.read_text()
    assert all(f"<h2>{kind}</h2>" in words for kind in kinds)


def test_a_robot_skips_the_ticks_at_which_it_still_waits(bench):
    with serve_models({"sloth": SlowRobot()}) as slow:
        flags = ("--model", "sloth", "--mix", "robot=1@50hz", "--seconds", "1", "--server-slo", "robot=best_effort")
        (level,) = bench(slow, *flags)
    payload, ticks = level["kinds"]["robot"], level["records"]
    assert all(later["due_at"] - earlier["due_at"] == pytest.approx(0.02) for earlier, later in pairwise(ticks))
    assert payload["skipped"] >= 3 * (payload["completed"] - 1) > 0
    assert (payload["slo_met"], payload["failed"]) == (0, {})
    assert (level["load"], level["unit"]) == (1, "robots")
    assert all(record["sent_at"] >= record["due_at"] for record in ticks)


def test_pictures_come_sharper_and_sharper_where_they_are_streamed(model_server, bench, tmp_path):
    workload = tmp_path / "w.toml"
    workload.write_text('[images]\nmodel = "painter"\nbody = {stream = true, partial_images = 2}\nslo = 0.00001')
    (level,) = bench(model_server, "--workload", str(workload), "--concurrency", "1", "--requests", "2")
    assert [len(record["chunks"]) for record in level["records"]] == [3, 3]
    assert (level["kinds"]["images"]["completed"], level["kinds"]["images"]["slo_met"]) == (2, 0)


def test_refusals_are_counted_and_are_no_failure(bench, tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    slow = {"kind": "chat", "text": "slow" + "!" * 40, "body": {"max_tokens": 40}}
    trace.write_text("\n".join(json.dumps({"at": at} | slow) for at in (0.0, 0.03, 0.06, 0.07)))
    with run_toy_server(options=RuntimeConfig(max_running_requests=1, max_queued_requests=1)) as busy:
        (level,) = bench(busy, "--model", "parrot", "--trace", str(trace))
    chat = level["kinds"]["chat"]
    assert (chat["completed"], chat["rejected"]["count"], chat["failed"]) == (2, 2, {})
    assert chat["rejected"]["retry_after_s"]["p50"] > 0
    assert chat["rejected"]["duration_s"]["p99"] < chat["duration_s"]["p50"]
    assert "rejected in" in capsys.readouterr().out


# ---------------------------------------------------------------- the report
def test_a_report_needs_nothing_else_and_shows_silence():
    slo = {"ttft": 1.0, "total": None, "continuity": 0.1, "itl": None}
    about = {"url": "http://<x>", "seed": 0, "burstiness": 1.0, "kinds": {"speech": {"model": "m", "slo": slo}}}
    dry = RequestRecord("speech", 0.0, 0.0, [(0.1, 0.5), (1.1, 0.5)], 1.2, 200)
    fine = RequestRecord("speech", 0.5, 0.5, [(0.6, 2.0), (1.1, 0.5)], 1.2, 200)
    refused = RequestRecord("speech", 1.0, 1.0, ended_at=1.01, status=429, error="429 <busy>")
    runs = [LoadRun(load, "req/s", [dry, fine, refused], 0.1) for load in (1.0, 2.0)]
    payload = [metrics.run_metrics(run, {"speech": SloTarget(ttft=1.0, continuity=0.1)}) for run in runs]
    shown = render_report(about, payload, runs)
    assert not re.search(r"https?://(?!&lt;x&gt;)|<script|<link|@import|url\(", shown)
    assert "<busy>" not in shown
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", shown, re.DOTALL)]
    assert len(drawings) == 3 + 1 + 2  # over the load, in time, streams of each load
    marks = [[mark.get("class") for mark in drawing.iter()] for drawing in drawings[-2:]]
    for classes in marks:
        assert [classes.count(name) for name in ("play", "underrun", "lost", "wait")] == [3, 1, 1, 2]


# ---------------------------------------------------------------- what goes wrong
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "vectors"], "it is served at `/v1/embeddings`"),
        (["--model", "parot"], "did you mean `parrot`"),
        (["--model", "parrot", "--mix", "robot"], "the warm-up request robot for `parrot` failed: 404"),
        ([], "--model chat=NAME"),
    ],
)
def test_what_would_fail_every_time_is_given_at_once(server, capsys, flags, words):
    assert main(["bench", "serve", server.url, *flags]) == 1
    out, err = capsys.readouterr()
    assert words in err
    assert "fix:" in err
    assert not out


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:1", "fix: check the URL and that the server runs"), ("localhost:8000", "http://host:port")],
)
def test_a_server_that_is_not_there(url, words, capsys):
    assert main(["bench", "serve", url, "--model", "parrot"]) == 1
    assert words in capsys.readouterr().err


def test_a_key_is_needed(capsys):
    with run_toy_server(keys=ApiKeys(["sesame"])) as server:
        assert main(["bench", "serve", server.url, "--model", "parrot"]) == 1
        assert "--key" in capsys.readouterr().err
        assert main(["bench", "serve", server.url, "--model", "parrot", "--key", "sesame", "--requests", "1"]) == 0


def test_requests_that_fail_make_the_command_fail(server, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "kind": "chat", "text": "💥"}\n{"at": 0, "kind": "chat", "text": "fine"}')
    assert main(["bench", "serve", server.url, "--model", "parrot", "--trace", str(trace)]) == 1
    out, err = capsys.readouterr()
    assert "1 request failed" in err
    assert out.splitlines()[1].split()[:6] == ["2", "req/s", "chat", "1", "0", "1"]
