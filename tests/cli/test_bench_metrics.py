"""The figures of `mstar bench serve`, by cases that were computed by hand."""

from dataclasses import replace

import pytest

from mstar.cli.bench import metrics
from mstar.cli.bench.records import SKIPPED, LoadRun, RequestRecord, SloTarget, parse_retry_after

UNDERRUN_CHUNKS = [(10.0, 1.0), (10.5, 0.5), (11.4, 0.5), (12.2, 1.0), (13.0, 0.5)]
"""Of this, 1, 1.5, 2, 3 seconds are there when the next comes, after 0.5, 1.4, 2.2, 3.0 seconds."""


def speech(sent, parts, **more):
    return RequestRecord("speech", sent, sent, parts, ended_at=parts[-1][0], status=200, **more)


def make_run(*records, cpu_s=1.0):
    return LoadRun(4.0, "req/s", [*records], cpu_s)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5], 50, 5), ([4, 1, 3, 2], 50, 2), ([4, 1, 3, 2], 90, 4), ([4, 1, 3, 2], 1, 1), (range(1, 101), 99, 99)],
)
def test_percentiles_are_values_that_were_measured(values, percent, expected):
    assert metrics.percentile(values, percent) == expected


def test_of_nothing_there_is_no_percentile():
    assert metrics.percentiles([]) == {}
    assert metrics.percentiles([3.0, 1.0]) == {"p50": 1.0, "p90": 3.0, "p99": 3.0}


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [(0.0, [True, True, False, False]), (0.15, [True, True, False, True]), (0.25, [True, True, True, True])],
)
def test_a_chunk_is_on_time_while_there_is_sound_left_to_play(tolerance, expected):
    assert metrics.chunks_on_time(UNDERRUN_CHUNKS, tolerance) == expected


def test_one_chunk_is_on_time_and_silent_nowhere():
    assert metrics.chunks_on_time([(3.0, 1.0)], 0.0) == metrics.playback_gaps([(3.0, 1.0)]) == []


def test_a_player_waits_when_it_has_nothing():
    played = metrics.playback_intervals(UNDERRUN_CHUNKS)
    assert played == [pytest.approx((10.0, 12.0)), pytest.approx((12.2, 13.7))]
    assert metrics.playback_gaps(UNDERRUN_CHUNKS) == [pytest.approx(0.2)]


@pytest.mark.parametrize(
    ("slo", "is_kept"),
    [
        (SloTarget(), True),
        (SloTarget(ttft=1.0), True),
        (SloTarget(ttft=0.9), False),
        (SloTarget(total=4.0), True),
        (SloTarget(total=3.9), False),
        (SloTarget(continuity=0.25), True),
        (SloTarget(continuity=0.1), False),
        (SloTarget(itl=0.75), True),
        (SloTarget(itl=0.74), False),
        (SloTarget(ttft=1.0, continuity=0.1), False),
    ],
)
def test_slo_attainment(slo, is_kept):
    assert metrics.meets_slo(speech(9.0, UNDERRUN_CHUNKS), slo) is is_kept  # 1 s, 4 s, 0.2 s too late, 3 s in 4 gaps
    assert not metrics.meets_slo(speech(9.0, UNDERRUN_CHUNKS, error="cut"), slo)


def test_goodput_counts_what_was_wanted_and_shares_are_of_answers():
    records = [
        speech(0.0, [(0.5, 1.0), (0.9, 1.0)]),
        speech(1.0, [(3.0, 2.0)]),
        speech(9.0, UNDERRUN_CHUNKS),
        RequestRecord("speech", 4.0, 4.0, ended_at=4.01, status=429, retry_after=2.5, error="429 overloaded"),
        RequestRecord("speech", 5.0, 5.02, ended_at=5.5, error="lost"),
    ]
    payload = metrics.kind_metrics(records, SloTarget(ttft=1.0, continuity=0.1), 10.0)
    assert (payload["sent"], payload["completed"], payload["slo_met"], payload["failed"]) == (5, 3, 1, {"lost": 1})
    assert (payload["requests_per_s"], payload["goodput_per_s"]) == (0.3, 0.1)
    assert payload["ttft_within_slo"] == pytest.approx(2 / 3)
    assert payload["ttft_s"] == {"p50": 1.0, "p90": 2.0, "p99": 2.0}
    assert payload["rejected"]["count"] == 1
    assert payload["rejected"]["duration_s"]["p50"] == pytest.approx(0.01)
    assert payload["rejected"]["retry_after_s"]["p99"] == 2.5
    sound = payload["audio"]
    assert sound["chunks_on_time"] == {"0ms": 3 / 5, "50ms": 4 / 5, "100ms": 4 / 5}  # the last came as silence began
    assert sound["streams_on_time"] == {"0ms": 2 / 3, "50ms": 2 / 3, "100ms": 2 / 3}
    assert (sound["underruns"], sound["silence_s"]) == (1, pytest.approx(0.2))
    assert sound["audio_s_per_s"] == pytest.approx((2 + 2 + 3.5) / 10)
    assert sound["rtf"]["p50"] == pytest.approx(1.0)  # 0.9 / 2, 2 / 2, 4 / 3.5


def test_a_kind_that_ends_early_is_counted_until_the_last_request_was_sent():
    run = make_run(
        RequestRecord("chat", 1.0, 1.0, [(2.0, 1.0)], 2.0, 200),
        RequestRecord("speech", 4.0, 4.0, [(5.0, 1.0)], 8.0, 200),
        RequestRecord("chat", 3.0, 3.0, [(3.5, 1.0)], 3.5, 200),
    )
    payload = metrics.run_metrics(run, {"chat": SloTarget(), "speech": SloTarget()})
    assert payload["seconds"] == 8.0
    assert {kind: one["requests_per_s"] for kind, one in payload["kinds"].items()} == {"chat": 2 / 4, "speech": 1 / 8}
    assert replace(run, window_s=20.0).seconds("chat") == 20.0


def test_ticks_that_robots_skip_are_missed_but_nothing_failed():
    tick = RequestRecord("robot", 0.2, 0.2, [(0.3, 50.0)], 0.3, 200)
    skipped = RequestRecord("robot", 0.4, 0.4, ended_at=0.4, error=SKIPPED)
    payload = metrics.kind_metrics([tick, skipped], SloTarget(total=0.2), 10.0)
    assert (payload["sent"], payload["slo_met"], payload["skipped"], payload["failed"]) == (2, 1, 1, {})


def test_what_was_received_gives_a_real_time_factor_and_tokens_a_rate():
    received = RequestRecord("transcriptions", 1.0, 1.0, [(2.0, 1.0)], 2.0, 200, tokens=40, audio_input_s=5.0)
    payload = metrics.kind_metrics([received], SloTarget(total=5.0), 10.0)
    assert (payload["rtf"]["p50"], payload["tokens_per_s"]) == (0.2, 4.0)


@pytest.mark.parametrize(
    ("late_s", "cpu_s", "is_bottleneck"), [(0.001, 1.0, False), (0.03, 1.0, True), (0.001, 9.0, True)]
)
def test_a_slow_load_generator_says_so(late_s, cpu_s, is_bottleneck):
    payload = metrics.generator_metrics(make_run(RequestRecord("chat", 10.0, 10.0 + late_s), cpu_s=cpu_s))
    assert payload["is_bottleneck"] is is_bottleneck
    assert payload["send_delay_s"]["p99"] == pytest.approx(late_s)
    assert payload["cpu_ms_per_request"] == 1000 * cpu_s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Mon"}, None),
    ],
)
def test_when_to_come_again(headers, seconds):
    assert parse_retry_after(headers) == seconds
