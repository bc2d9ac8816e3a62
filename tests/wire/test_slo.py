"""SLO deadlines: playback clock and durations of emissions."""

import numpy as np
import pytest

from mstar.wire.slo import PlaybackClock, Slo, duration_of, has_deadline


def test_playback_starts_with_the_first_emission():
    player = PlaybackClock(due=1.0)
    assert player.on_emission(0.4, 2.0) == pytest.approx(-0.6)
    assert player.due == pytest.approx(2.4)
    player.on_emission(1.0, 2.0)
    assert player.due == pytest.approx(4.4)


def test_playback_resumes_after_an_underrun():
    player = PlaybackClock(due=1.0)
    player.on_emission(0.0, 1.0)
    assert player.on_emission(3.0, 1.0) == pytest.approx(2.0)
    assert player.due == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("kind", "value", "clock", "seconds"),
    [
        ("Audio", np.zeros(24_000), {"rate": 24_000}, 1.0),
        ("Audio", np.zeros((1, 12_000)), {"rate": 24_000}, 0.5),
        ("Video", np.zeros((8, 2, 2, 3)), {"fps": 16.0}, 0.5),
        ("Action", np.zeros((10, 7)), {"rate": 50.0}, 0.2),
        ("Text", 7, {}, 0.1),
        ("Text", [1, 2, 3], {}, 0.3),
        ("Image", np.zeros((3, 4, 4)), {}, None),
    ],
)
def test_duration_of_an_emission(kind, value, clock, seconds):
    duration = duration_of(kind, value, clock, Slo(tokens_per_s=10.0))
    assert duration == (None if seconds is None else pytest.approx(seconds))


def test_which_kinds_have_deadlines():
    assert [has_deadline(kind, Slo()) for kind in ("Audio", "Video", "Action", "Text", "Image")] == [True] * 3 + [
        False
    ] * 2
    assert has_deadline("Text", Slo(tokens_per_s=5.0))
    assert has_deadline("Image", Slo(ttft_s=3.0))
    assert not has_deadline("Audio", Slo(best_effort=True, ttft_s=1.0))
    assert (Slo().ttft_target_s, Slo(ttft_s=0.2).ttft_target_s) == (1.0, 0.2)


def test_nothing_is_due_after_an_emission_without_duration():
    player = PlaybackClock(due=1.0)
    assert player.on_emission(0.5, None) == pytest.approx(-0.5)
    assert player.due == float("inf")


def test_an_empty_chunk_changes_nothing():
    player = PlaybackClock(due=1.0)
    player.on_emission(0.0, 2.0)
    player.on_emission(0.5, 0.0)
    assert player.due == pytest.approx(2.0)
