"""Comparisons of models with their references: what a baseline is, and that each claim finds its figures."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bench.claims import Row
from bench.in_process import Elapsed, time_wall_and_cpu
from bench.multimodal import headline as multimodal
from bench.multimodal import vjepa2_ac
from bench.multimodal.speedup import speedup_rows
from bench.speech import headline as speech
from bench.speech import orpheus, qwen3_omni
from bench.speech.concurrent_requests import Run, Spoken
from bench.targets import Table, claim_targets

RATE = qwen3_omni.RATE


class TimedOmni(qwen3_omni.Contestants):
    """Sides whose durations are known: transformers takes a second per prompt in a batch, ours a tenth."""

    def generate(self, prompts):
        seconds = float(len(prompts))
        return Run([Spoken(seconds, seconds, RATE)] * len(prompts))


def serve(requests):
    return Run([Spoken(0.05 * len(requests), 0.1 * len(requests), RATE)] * len(requests))


def read_all(figures, rows):
    table = Table(rows)
    return {name: (figure[0] if isinstance(figure, tuple) else figure)(table) for name, figure in figures.items()}


@pytest.fixture
def omni(monkeypatch):
    @contextmanager
    def contestants(shape):
        yield TimedOmni(None, [None] * qwen3_omni.COUNT, serve)

    monkeypatch.setattr(qwen3_omni, "contestants", contestants)


@pytest.fixture
def streams(monkeypatch):
    """Orpheus: the reference takes a second, however many streams it has; ours takes half of it."""
    samples = sum(length // 7 * 2048 for length in orpheus.LENGTHS)

    @contextmanager
    def contestants(llama):
        yield SimpleNamespace(
            reference=SimpleNamespace(speak=lambda lengths: 1.0), run=lambda: Run([Spoken(0.1, 0.5, samples)])
        )

    monkeypatch.setattr(orpheus, "contestants", contestants)


def test_a_figure_without_a_target_is_shown_and_decides_nothing():
    rows = [Row("ours", "x", [3.0]), Row("wider", "x", [0.5])]
    claim = claim_targets("faster", rows, {"ours": (lambda row: row("ours"), 2.0)}, {"wider": lambda row: row("wider")})
    assert (claim.value, claim.is_met) == (1.5, True)
    assert claim.details == {"ours": "3.00 (bar 2)", "wider": "0.50 (no bar)"}


def test_a_wait_counts_as_wall_time_and_not_as_cpu_time():
    import time

    elapsed, result = time_wall_and_cpu(lambda: time.sleep(0.05) or 3)
    assert result == 3
    assert elapsed.cpu_s < 0.05 <= elapsed.wall_s


def test_the_speed_up_is_that_of_wall_time():
    rows = speedup_rows("a chunk", [Elapsed(6.0, 4.0)], [Elapsed(2.0, 1.0)])
    table = Table(rows)
    assert table("a chunk, served: times faster") == 3.0
    assert table("a chunk, served: times faster, CPU time") == 4.0


def test_figures_of_a_run_are_medians_over_its_requests():
    run = Run([Spoken(1.0, 2.0, RATE), Spoken(2.0, 4.0, 2 * RATE), Spoken(6.0, 9.0, RATE)])
    assert (run.first_s, run.seconds, run.samples) == (2.0, 9.0, 4 * RATE)
    assert run.real_time_factor(RATE) == 2.0


def test_a_request_of_the_queue_waits_for_those_before_it(omni):
    with qwen3_omni.contestants({}) as both:
        measured = qwen3_omni.measure_round(both, has_queue=True)
    assert [one.first_s for one in measured.queue.requests] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert measured.alone.first_s == 1.0


def test_qwen3_omni_is_compared_with_one_request_alone_and_with_the_queue(omni):
    rows = qwen3_omni.rows()
    figures = read_all(speech.OMNI_WIDE | speech.OMNI_BESIDE, rows)
    first = "Qwen3-Omni, first audio of 8 at once, width 512, times better than"
    assert figures[f"{first} one request alone"] == pytest.approx(2.5)
    assert figures[f"{first} queue of 8"] == pytest.approx(11.25)
    assert figures["Qwen3-Omni, audio per second of 8 at once, times better than batch of 8"] == pytest.approx(10)


def test_the_short_form_has_no_queue(omni):
    rows = qwen3_omni.rows(is_long=False)
    assert not any("queue" in row.name for row in rows)
    assert set(read_all(speech.OMNI | speech.OMNI_ALONE, rows)) == {*speech.OMNI, *speech.OMNI_ALONE}


def test_orpheus_times_all_references_in_the_long_form(streams):
    rows = orpheus.rows()
    table, figures = Table(rows), read_all(speech.ORPHEUS | speech.ORPHEUS_BATCH | speech.ORPHEUS_WIDE, rows)
    assert table("transformers and snac, one by one") == len(orpheus.LENGTHS)
    assert figures["Orpheus, 16 streams, times one by one"] == 2 * len(orpheus.LENGTHS)
    assert figures["Orpheus, 16 streams, times their batch"] == 2


def test_orpheus_says_when_its_reference_is_scaled(streams):
    rows = orpheus.rows(is_long=False)
    scaled = 4 * sum(orpheus.LENGTHS) / sum(orpheus.TIMED)
    assert Table(rows)("transformers and snac, one by one, scaled from 4 of 16") == pytest.approx(scaled)
    assert not any("error" in row.name for row in rows)


@pytest.mark.parametrize("is_long", [False, True])
def test_vjepa2_ac_has_its_target_above_the_width_limit_of_the_fused_kernels(monkeypatch, is_long):
    from mstar.models.vjepa2.network import _MAX_FUSED_HIDDEN

    sizes = list[vjepa2_ac.Size]()

    @contextmanager
    def contestants(size, dtypes=vjepa2_ac.DTYPES[:1]):
        sizes.append(size)
        reference = SimpleNamespace(imagine=lambda request: None, act=None, encode=None)
        models = {"float32": SimpleNamespace(encoder=None)}
        yield vjepa2_ac.Contestants(reference, models, dict.fromkeys(dtypes, lambda request: None))

    monkeypatch.setattr(vjepa2_ac, "contestants", contestants)
    monkeypatch.setattr(
        vjepa2_ac, "time_and_compare", lambda theirs, ours, given: [[Elapsed(8.0, 8.0)], [Elapsed(2.0, 2.0)]]
    )
    rows = vjepa2_ac.rows(is_long=is_long)
    context = multimodal.WORLD_FUSED | (multimodal.WORLD_WIDEST if is_long else {})
    assert set(read_all(multimodal.WORLD | context, rows).values()) == {4.0}
    assert 4 * vjepa2_ac.WIDE.width > _MAX_FUSED_HIDDEN >= 4 * vjepa2_ac.FUSED.width
    assert sizes[:2] == [vjepa2_ac.WIDE, vjepa2_ac.FUSED]
