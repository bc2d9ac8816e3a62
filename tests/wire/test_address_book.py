"""Address book: local and remote peers, and removal of dead incarnations."""

from pathlib import Path

import pytest

from mstar.config import ProcessConfig, RuntimeConfig
from mstar.errors import MstarError
from mstar.wire.messages import Peer
from mstar.wire.transport.address_book import MAX_PATH_BYTES, AddressBook

A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


def test_on_a_single_host_every_peer_is_local():
    book = AddressBook(Path("/tmp/run"))
    assert book.is_local(A)
    assert book.endpoint(A) is None
    assert book.socket_path(Peer("a", 7)) == Path("/tmp/run/a.7")


def test_with_an_address_the_ip_tells_local_from_remote_peers():
    book = AddressBook(Path("/tmp/run"), "10.0.0.1", {A: "10.0.0.1:11/tmp/other", B: "10.0.0.2:22/tmp/far"})
    book.port = 33
    assert book.own_address == "10.0.0.1:33/tmp/run"
    assert [book.is_local(peer) for peer in (A, B, C)] == [True, False, False]
    assert [book.endpoint(peer) for peer in (A, B, C)] == ["10.0.0.1:11", "10.0.0.2:22", None]
    assert book.socket_path(A) == Path("/tmp/other/a.0")


def test_a_new_address_replaces_the_old_one():
    book = AddressBook(Path("/tmp/run"), "10.0.0.1")
    assert book.socket_path(A) == Path("/tmp/run/a.0")
    book.set_address(A, "10.0.0.1:11/tmp/other")
    assert book.socket_path(A) == Path("/tmp/other/a.0")


def test_an_incarnation_and_its_predecessors_are_removed_and_an_endpoint_with_its_last_peer():
    address = "10.0.0.2:22/tmp/far"
    book = AddressBook(Path("/tmp/run"), "10.0.0.1", {A: address, B: address, Peer("a", 1): "10.0.0.2:33/tmp/far"})
    assert book.forget(Peer("a", 1)) == ["10.0.0.2:33"]
    assert book.addresses() == {B: address}
    assert book.forget(A) == []
    book.set_address(Peer("b", 5), address)
    assert book.forget(Peer("b", 4)) == []
    assert book.forget(Peer("b", 5)) == ["10.0.0.2:22"]


def test_a_process_learns_addresses_at_its_start():
    fields = {"name": "a", "incarnation": 0, "directory": "/tmp/run", "key": b"", "peers": {"b": 3, "c": 0}}
    remote = {"ip": "10.0.0.1", "addresses": {"b": "10.0.0.2:22/tmp/far"}}
    config = ProcessConfig(**fields, **remote, models={}, placements={}, options=RuntimeConfig())
    book = AddressBook.from_config(config)
    assert book.ip == "10.0.0.1"
    assert book.addresses() == {Peer("b", 3): "10.0.0.2:22/tmp/far"}


def test_an_invalid_path_is_rejected():
    book = AddressBook(Path("/tmp/run"))
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match="invalid process name"):
            book.socket_path(Peer(name, 0))
    with pytest.raises(MstarError, match="the limit is 107"):
        AddressBook(Path("/" + "d" * MAX_PATH_BYTES)).socket_path(A)
