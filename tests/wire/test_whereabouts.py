"""Whereabouts: who is here, who is elsewhere, and what is left when lives end."""

from pathlib import Path

import pytest

from mstar.config import Options, Settings
from mstar.errors import MstarError
from mstar.wire.messages import Peer
from mstar.wire.whereabouts import PATH_BYTES, Whereabouts

A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


def test_on_a_single_machine_everybody_is_here():
    where = Whereabouts(Path("/tmp/run"))
    assert where.is_here(A)
    assert where.endpoint(A) is None
    assert where.path(Peer("a", 7)) == Path("/tmp/run/a.7")


def test_with_an_address_the_ip_says_who_is_here_and_the_rest_where():
    where = Whereabouts(Path("/tmp/run"), "10.0.0.1", {A: "10.0.0.1:11/tmp/other", B: "10.0.0.2:22/tmp/far"})
    where.port = 33
    assert where.mine == "10.0.0.1:33/tmp/run"
    assert [where.is_here(peer) for peer in (A, B, C)] == [True, False, False]
    assert [where.endpoint(peer) for peer in (A, B, C)] == ["10.0.0.1:11", "10.0.0.2:22", None]
    assert where.path(A) == Path("/tmp/other/a.0")


def test_who_is_met_again_elsewhere_is_found_there():
    where = Whereabouts(Path("/tmp/run"), "10.0.0.1")
    assert where.path(A) == Path("/tmp/run/a.0")
    where.meet(A, "10.0.0.1:11/tmp/other")
    assert where.path(A) == Path("/tmp/other/a.0")


def test_a_life_and_those_before_it_are_forgotten_and_an_endpoint_only_with_the_last_who_lives_there():
    there = "10.0.0.2:22/tmp/far"
    where = Whereabouts(Path("/tmp/run"), "10.0.0.1", {A: there, B: there, Peer("a", 1): "10.0.0.2:33/tmp/far"})
    assert where.forget(Peer("a", 1)) == ["10.0.0.2:33"]
    assert where.known() == {B: there}
    assert where.forget(A) == []
    where.meet(Peer("b", 5), there)
    assert where.forget(Peer("b", 4)) == []
    assert where.forget(Peer("b", 5)) == ["10.0.0.2:22"]


def test_a_process_is_told_at_its_start():
    told = {"name": "a", "incarnation": 0, "directory": "/tmp/run", "key": b"", "peers": {"b": 3, "c": 0}}
    there = {"ip": "10.0.0.1", "addresses": {"b": "10.0.0.2:22/tmp/far"}}
    settings = Settings(**told, **there, models={}, placements={}, options=Options())
    where = Whereabouts.of(settings)
    assert where.ip == "10.0.0.1"
    assert where.known() == {Peer("b", 3): "10.0.0.2:22/tmp/far"}


def test_what_cannot_be_a_path_is_refused():
    where = Whereabouts(Path("/tmp/run"))
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match="cannot be called"):
            where.path(Peer(name, 0))
    with pytest.raises(MstarError, match="too long for a socket"):
        Whereabouts(Path("/" + "d" * PATH_BYTES)).path(A)
