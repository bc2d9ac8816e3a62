"""Servers that do not answer in time: a session is not given up, and a copy is not replaced by an older one."""

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest
from websockets.exceptions import InvalidStatus

from mstar.client.errors import ServerBusy, to_api_error
from mstar.server.realtime.backup import connections
from mstar.server.realtime.backup.connections import BackupConnections
from tests.server.model_server import serve_models
from tests.server.realtime.backup.test_takeover import Caller, deltas, free_port
from tests.server.realtime.test_resume import TEXT, receive_until
from tests.server.toy_voice_model import Talker


@contextmanager
def server(*backup_urls):
    with serve_models({"talker": Talker()}, backup_urls=backup_urls) as started:
        yield started


@pytest.fixture
def no_server():
    """A URL at which nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


async def refused(caller, at):
    """The error of a client that cannot come back there, as `mstar.client` parses it."""
    with pytest.raises(InvalidStatus) as failed:
        await caller.resume_at(at)
    response = failed.value.response
    return to_api_error(response.status_code, connections.msgspec.json.decode(response.body), "", {})


@contextmanager
def late_replies(of):
    """Its replies to takeovers are held back until the block ends."""
    backups, end, taking = of.state.session_backups, threading.Event(), threading.Event()
    take_here = backups._take_here

    def take_late(key, epoch):
        reply = take_here(key, epoch)
        taking.set()
        assert end.wait(30)
        return reply

    backups._take_here = take_late
    try:
        yield taking
    finally:
        end.set()
        backups._take_here = take_here


def test_a_session_is_not_given_up_while_a_server_does_not_answer(no_server):
    with server(no_server) as first:

        async def run():
            caller = Caller(first)
            caller.session_id = "sess_unknown"
            error = await refused(caller, first)
            assert (error.code, isinstance(error, ServerBusy)) == ("session_unreachable", True)

        asyncio.run(run())


def test_a_session_whose_reply_was_too_late_is_there_for_the_next_try(no_server, monkeypatch):
    """Its server has handed it over, and the other one did not wait: it has no other copy."""
    monkeypatch.setattr(connections, "TAKE_TIMEOUT_S", 0.3)
    with server(no_server) as first, server(first.url) as second:

        async def run():
            caller = Caller(first)
            await caller.open()
            await caller.ask("hello", TEXT)
            await receive_until(caller, "response.done")
            with late_replies(first) as taking:
                assert (await refused(caller, second)).code == "session_unreachable"
                assert taking.is_set()
            monkeypatch.setattr(connections, "TAKE_TIMEOUT_S", 10.0)
            await caller.resume_at(second)
            await caller.ask("again", TEXT)
            await receive_until(caller, "response.done")
            assert "".join(deltas(caller, "output_text")) == "helloagain"
            await caller.close()

        asyncio.run(run())


def test_a_server_that_has_just_started_makes_its_copies_first(no_server):
    """It has not yet tried to connect to the other servers when a session is taken over."""

    async def run():
        backups = BackupConnections([no_server], "key")
        assert not backups._tried.is_set()
        running = asyncio.create_task(backups.run())
        await asyncio.wait_for(backups.wait_tried(), 10)
        running.cancel()

    asyncio.run(run())


class Updates:
    """A connection with an update whose result is overdue."""

    url = "http://other"
    is_connected = True

    def __init__(self, sent_at):
        self.sent_at, self.aborted = sent_at, False

    def is_late(self, now, timeout_s):
        return now - self.sent_at > timeout_s


@pytest.mark.parametrize(
    ("age_s", "others", "is_late"),
    [(0.4, 1, False), (1.0, 1, True), (1.0, 0, False), (3.5, 0, True)],
)
def test_the_last_server_with_copies_gets_more_time(age_s, others, is_late):
    backups = BackupConnections([], "key")
    now = time.monotonic()
    active = Updates(now - age_s)
    backups._active, backups._connections = active, [active, *(Updates(now) for _ in range(others))]
    assert (backups._late_connection(now) is active) == is_late
