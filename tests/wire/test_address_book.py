"""Whereabouts: who is here, who is elsewhere, and what is left when lives end."""

from pathlib import Path

import pytest

from mstar.config import ProcessConfig, RuntimeConfig
from mstar.errors import MstarError
from mstar.wire.messages import Peer
from mstar.wire.transport.address_book import MAX_PATH_BYTES, AddressBook

A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


def test_on_a_single_host_every_peer_is_local():
    where = AddressBook(Path("/tmp/run"))
    assert where.is_local(A)
    assert where.endpoint(A) is None
    assert where.socket_path(Peer("a", 7)) == Path("/tmp/run/a.7")


def test_with_an_address_the_ip_tells_local_from_remote_peers():
    where = AddressBook(Path("/tmp/run"), "10.0.0.1", {A: "10.0.0.1:11/tmp/other", B: "10.0.0.2:22/tmp/far"})
    where.port = 33
    assert where.own_address == "10.0.0.1:33/tmp/run"
    assert [where.is_local(peer) for peer in (A, B, C)] == [True, False, False]
    assert [where.endpoint(peer) for peer in (A, B, C)] == ["10.0.0.1:11", "10.0.0.2:22", None]
    assert where.socket_path(A) == Path("/tmp/other/a.0")


def test_a_peer_with_a_new_address_is_found_there():
    where = AddressBook(Path("/tmp/run"), "10.0.0.1")
    assert where.socket_path(A) == Path("/tmp/run/a.0")
    where.set_address(A, "10.0.0.1:11/tmp/other")
    assert where.socket_path(A) == Path("/tmp/other/a.0")


def test_an_incarnation_and_its_predecessors_are_removed_and_an_endpoint_with_its_last_peer():
    there = "10.0.0.2:22/tmp/far"
    where = AddressBook(Path("/tmp/run"), "10.0.0.1", {A: there, B: there, Peer("a", 1): "10.0.0.2:33/tmp/far"})
    assert where.forget(Peer("a", 1)) == ["10.0.0.2:33"]
    assert where.addresses() == {B: there}
    assert where.forget(A) == []
    where.set_address(Peer("b", 5), there)
    assert where.forget(Peer("b", 4)) == []
    assert where.forget(Peer("b", 5)) == ["10.0.0.2:22"]


def test_a_process_learns_addresses_at_its_start():
    told = {"name": "a", "incarnation": 0, "directory": "/tmp/run", "key": b"", "peers": {"b": 3, "c": 0}}
    there = {"ip": "10.0.0.1", "addresses": {"b": "10.0.0.2:22/tmp/far"}}
    settings = ProcessConfig(**told, **there, models={}, placements={}, options=RuntimeConfig())
    where = AddressBook.from_config(settings)
    assert where.ip == "10.0.0.1"
    assert where.addresses() == {Peer("b", 3): "10.0.0.2:22/tmp/far"}


def test_what_cannot_be_a_path_is_refused():
    where = AddressBook(Path("/tmp/run"))
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match="cannot be called"):
            where.socket_path(Peer(name, 0))
    with pytest.raises(MstarError, match="too long for a socket"):
        AddressBook(Path("/" + "d" * MAX_PATH_BYTES)).socket_path(A)
