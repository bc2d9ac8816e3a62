"""`mstar top`: what it makes of a server's figures."""

import os
from math import inf

import httpx2
import pytest

from mstar.cli import main, top
from tests.server.toy_server import run_toy_server


@pytest.fixture(scope="module")
def server():
    with run_toy_server() as started:
        yield started


def send_chats(server, count):
    body = {"model": "parrot", "messages": [{"role": "user", "content": "hello"}]}
    for _ in range(count):
        httpx2.post(f"{server.url}/v1/chat/completions", json=body).raise_for_status()


def test_one_table_of_a_server(server, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(top.time, "sleep", lambda seconds: send_chats(server, 4))  # what happens between two looks
    assert main(["top", "--url", server.url, "--once"]) == 0
    out = capsys.readouterr().out
    assert f"{server.url}  ready" in out
    row = next(line.split() for line in out.splitlines() if " parrot " in line)
    assert float(row[1]) > 1
    assert row[3] in ("ms", "s")
    assert "Text" in row
    assert " conductor " in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["front"])
    assert row[1] == str(os.getpid())
    assert row[2].endswith("%")
    assert "MiB" in row


def make_figures(at, calls, batches, seconds, waited):
    labels = {"model": "m", "component": "lm", "op": "next_token", "worker": "w0"}
    walked = tuple(sorted({**labels, "walk": "answer"}.items()))
    alone = tuple(sorted(labels.items()))
    samples = {
        "mstar_op_calls_total": {walked: calls},
        "mstar_op_batches_total": {alone: batches},
        "mstar_op_seconds_total": {walked: seconds},
        "mstar_op_wait_seconds_total": {walked: waited},
    }
    return top.MetricsSample(at, "ready", samples)


def test_what_ops_do(capsys):
    from rich.console import Console

    watch = top.MetricsHistory("http://there", "")
    watch._samples.extend([make_figures(0.0, 100, 20, 1.0, 0.0), make_figures(10.0, 500, 70, 6.0, 4.0)])
    Console(width=120).print(watch.table())
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if "lm.next_token" in line)
    assert row == ["m", "lm.next_token", "w0", "40.0", "8.0", "50%", "10", "ms"]


def test_the_process_of_a_worker_has_its_devices(capsys):
    from rich.console import Console

    def info(component, device):
        return tuple(sorted({"model": "m", "component": component, "worker": "w0", "device": device}.items()))

    loaded = {info("codec", "cpu"): 1.0, info("lm", "cuda:0"): 1.0, info("drafter", "cuda:0"): 1.0}
    requests = {(("process", name),): 1.0 for name in ("conductor", "w0")}
    samples = {"mstar_component_info": loaded, "mstar_process_requests": requests}
    watch = top.MetricsHistory("http://there", "")
    watch._samples.append(top.MetricsSample(0.0, "ready", samples))
    Console(width=120).print(watch.table())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["process", "devices", "requests"] in rows
    assert ["w0", "cpu,", "cuda:0", "1"] in rows
    assert ["conductor", "–", "1"] in rows


def test_the_cpu_cost_of_tokens_and_requests(capsys):
    from rich.console import Console

    def sample(at, tokens, requests, cpu_s, op_cpu_s):
        def by_process(values):
            roles = {"front": "frontend", "w0": "worker"}
            return {(("process", name), ("role", roles[name])): value for name, value in values.items()}

        responses = {
            (("model", "m"), ("reason", "stop")): requests,
            (("model", "m"), ("reason", "cancelled")): 1.0,
        }
        samples = {
            "mstar_generation_tokens_total": {(("model", "m"),): tokens},
            "mstar_responses_total": responses,
            "mstar_process_cpu_seconds_total": by_process(cpu_s),
            "mstar_process_op_cpu_seconds_total": by_process(op_cpu_s),
        }
        return top.MetricsSample(at, "ready", samples)

    watch = top.MetricsHistory("http://there", "")
    watch._samples.append(sample(0.0, 50.0, 5.0, {"front": 1.0, "w0": 2.0}, {"w0": 1.0}))
    Console(width=120).print(watch.table())
    assert "CPU cost" not in capsys.readouterr().out
    watch._samples.append(sample(10.0, 1050.0, 25.0, {"front": 1.05, "w0": 42.0}, {"w0": 31.0}))
    Console(width=120).print(watch.table())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["front", "frontend", "0.01", "–", "50", "µs", "2.5", "ms"] in rows
    assert ["w0", "worker", "4.00", "75%", "40", "ms", "2.00", "s"] in rows


def test_several_front_ends_are_added_up(capsys):
    from rich.console import Console

    def sample(at, first, second):
        def series(*values, **labels):
            return {
                tuple(sorted({"frontend": f"front-{number}", **labels}.items())): value
                for number, value in enumerate(values, 1)
            }

        buckets = series(0.0, second, model="m", kind="Text", le="0.1")
        buckets |= series(first, second, model="m", kind="Text", le="1.0")
        buckets |= series(first, second, model="m", kind="Text", le="+Inf")
        samples = {
            "mstar_requests_in_progress": series(first / 10, second / 10),
            "mstar_time_to_first_output_seconds_bucket": buckets,
            "mstar_time_to_first_output_seconds_count": series(first, second, model="m", kind="Text"),
        }
        return top.MetricsSample(at, "ready", samples)

    watch = top.MetricsHistory("http://there", "")
    watch._samples.extend([sample(0.0, 100.0, 300.0), sample(10.0, 200.0, 100.0)])  # the second one was restarted
    Console(width=120).print(watch.table())
    out = capsys.readouterr().out
    assert "  30 running requests" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["m"])
    assert row[:6] == ["m", "20.0", "100", "ms", "982", "ms"]


def test_a_long_batch_is_shown_with_its_op(capsys):
    from rich.console import Console

    def sample(at, seconds):
        labels = {"model": "m", "component": "lm", "op": "decode", "worker": "w0"}
        other = labels | {"op": "encode"}
        running = {tuple(sorted(labels.items())): seconds, tuple(sorted(other.items())): 0.0}
        return top.MetricsSample(at, "ready", {"mstar_op_running_seconds": running})

    watch = top.MetricsHistory("http://there", "")
    watch._samples.append(sample(0.0, 2.0))
    Console(width=120).print(watch.table())
    assert "lm.decode" not in capsys.readouterr().out
    watch._samples.append(sample(10.0, 12.0))
    Console(width=120).print(watch.table())
    out = capsys.readouterr().out
    assert "long batches" in out
    assert "lm.encode" not in out
    row = next(line.split() for line in out.splitlines() if "lm.decode" in line)
    assert row == ["m", "lm.decode", "w0", "12", "s"]


def test_looks_are_forgotten():
    watch = top.MetricsHistory("http://there", "")
    for number in range(100):
        watch._samples.append(make_figures(float(number), number * 3, 1, 0.0, 0.0))
    assert watch.latest.taken_at - watch._samples[0].taken_at == top.WINDOW_SAMPLES
    assert watch.rates("mstar_op_calls_total", "op") == {("next_token",): 3.0}


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ({0.1: 0, 0.2: 10, inf: 10}, 0.5, pytest.approx(0.15)),
        ({0.1: 5, 0.2: 10, inf: 10}, 0.5, 0.1),
        ({0.1: 90, 1.0: 100, inf: 100}, 0.99, pytest.approx(0.91)),
        ({0.1: 0, 1.0: 0, inf: 10}, 0.5, 1.0),
        ({0.1: 0, inf: 0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_quantiles_of_histograms(counts, share, value):
    assert top.interpolate_quantile(counts, share) == value


def test_no_server_and_no_key(capsys):
    assert main(["top", "--once", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server at http://127.0.0.1:9" in capsys.readouterr().err
    with run_toy_server(keys=top_keys()) as server:
        assert main(["top", "--once", "--url", server.url]) == 1
        assert "fix: pass --key" in capsys.readouterr().err


def top_keys():
    from mstar.server.access.api_keys import ApiKeys

    return ApiKeys(["k"])
