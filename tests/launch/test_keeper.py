"""A keeper by itself, without a cluster: it starts, watches and ends one life at a time, and says how it ended."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from mstar.config import Options, WorkerSettings
from mstar.wire.messages import Suspect
from tests.launch.parts import STAND_IN, lives, until

keeping = pytest.importorskip("mstar.launch.keeper")


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = Path.cwd()
    made = keeping.Keeper("a", (str(STAND_IN),), str(tmp_path))
    os.chdir(before)
    yield made
    made.close()
    assert os.listdir(tmp_path) == []


def settings(incarnation, **failpoints):
    """As the launcher sends them: what is only known on the worker's host is not right yet."""
    told = WorkerSettings(
        name="a",
        incarnation=incarnation,
        directory="/elsewhere",
        ip="10.0.0.1",
        key=bytes(32),
        peers={"launcher": 0, "conductor": 0},
        models={"m": "none.py"},
        placements={"m": ""},
        options=Options(failpoints=failpoints),
        conductor="conductor",
        black_box="/elsewhere/a.box",
    )
    return msgspec.msgpack.encode(told)


def death(told):
    return msgspec.msgpack.decode(told, type=keeping.Death)


def test_a_life_is_started_once_and_its_end_is_told(keeper, tmp_path):
    pid, _ = keeper.start(settings(0))
    assert keeper.start(settings(0))[0] == pid, "asked again, because the answer was lost"
    until(lambda: list(tmp_path.glob("*/a.0.box")))
    assert keeper.watch(0, 0.01) is None
    until(lambda: msgspec.msgpack.decode(keeper.look(), type=keeping.Look).used > 0)
    keeper.send(7, signal.SIGKILL)  # meant for another life
    assert keeper.watch(0, 0.1) is None

    keeper.send(0, signal.SIGKILL)
    told = death(keeper.watch(0, 5.0))
    assert (told.why, told.suspects) == ("ended by SIGKILL", [Suspect("r1", 7, 2)])
    assert not list(tmp_path.glob("*/a.0*"))


def test_a_life_that_was_given_up_ends_before_the_next_begins(keeper):
    old, _ = keeper.start(settings(0))
    new, _ = keeper.start(settings(1, a="dies"))
    assert not lives(old)
    assert new != old
    told = death(keeper.watch(1, 10.0))
    assert (told.why, told.words) == ("ended with status 1", "no weights here")
    assert told.said == b"no weights here\n"
    assert death(keeper.watch(0, 0.0)).why == "ended with its host, or with its keeper there"
