"""Event loop of the front end: uvloop where it is installed, else asyncio."""

import asyncio

import pytest

from mstar.server import event_loop


def test_uvloop_runs_the_front_end():
    uvloop = pytest.importorskip("uvloop")
    loops = []

    async def main():
        loops.append(asyncio.get_running_loop())

    event_loop.run(main())
    assert isinstance(loops[0], uvloop.Loop)
    assert loops[0].is_closed()


def test_asyncio_runs_it_where_uvloop_is_not_installed(monkeypatch):
    monkeypatch.setattr(event_loop, "uvloop", None)
    loop = event_loop.new_event_loop()
    loop.close()
    assert type(loop).__module__.startswith("asyncio")
