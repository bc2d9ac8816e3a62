"""When the next emission is due."""

import numpy as np
import pytest

from mstar.wire.pace import Pace, Playing, is_due, seconds_of


def test_a_client_plays_from_when_it_has_something():
    player = Playing(due=1.0)
    assert player.take(0.4, 2.0) == pytest.approx(-0.6)
    assert player.due == pytest.approx(2.4)
    player.take(1.0, 2.0)
    assert player.due == pytest.approx(4.4)


def test_who_ran_dry_plays_on_when_something_comes():
    player = Playing(due=1.0)
    player.take(0.0, 1.0)
    assert player.take(3.0, 1.0) == pytest.approx(2.0)
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
def test_how_long_an_emission_lasts(kind, value, clock, seconds):
    found = seconds_of(kind, value, clock, Pace(read=10.0))
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_what_is_due_at_all():
    assert [is_due(kind, Pace()) for kind in ("Audio", "Video", "Action", "Text", "Image")] == [True] * 3 + [False] * 2
    assert is_due("Text", Pace(read=5.0))
    assert is_due("Image", Pace(first_s=3.0))
    assert not is_due("Audio", Pace(is_batch=True, first_s=1.0))
    assert (Pace().soon, Pace(first_s=0.2).soon) == (1.0, 0.2)


def test_after_what_has_no_clock_nothing_is_due():
    player = Playing(due=1.0)
    assert player.take(0.5, None) == pytest.approx(-0.5)
    assert player.due == float("inf")


def test_a_chunk_without_sound_changes_nothing():
    player = Playing(due=1.0)
    player.take(0.0, 2.0)
    player.take(0.5, 0.0)
    assert player.due == pytest.approx(2.0)
