"""`mstar serve`: a model behind a port. It starts the processes, then lets clients in, and ends when it is told to.

The port is open from the first moment: `/ready` says how far the start is. At SIGTERM nobody new is let in, those who
are there come to their end, and then everything is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mstar.launch.local import Local
    from mstar.launch.together import Together
    from mstar.plan.deployment import Deployed
    from mstar.server.door import Door
    from mstar.server.keys import Keys
    from mstar.server.live import FrontEnd
    from mstar.wire.messages import Peer


def add_serve(commands: Any) -> None:
    """Add the command to a parser."""
    text = "serve a model over HTTP"
    serve = commands.add_parser("serve", help=text, description=text)
    serve.add_argument("model", help="a model's .py file (path.py or path.py:Class), or an installed name")
    serve.add_argument("--name", help="what clients call it (the name of the file)")
    serve.add_argument("--placement", type=Path, help="a placement file; without one, everything is on one worker")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="the port to listen at; 0 is any (8000)")
    keys = serve.add_mutually_exclusive_group()
    keys.add_argument("--api-key", action="append", default=[], help="a key that clients need; may be given again")
    keys.add_argument("--api-key-file", type=Path, help="a file with a key on each line")
    serve.add_argument("--in-process", action="store_true", help="run everything in this process, with no restarts")
    serve.add_argument("--insecure", action="store_true", help="listen at any address without keys")
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    from mstar.plan.deployment import deploy  # most commands do not need a server
    from mstar.plan.placement import read_placement
    from mstar.server.door import Door
    from mstar.server.listen import bound

    keys = _keys(options)
    name = options.name or Path(options.model.partition(":")[0]).stem
    placement = ""
    if options.placement:
        read_placement(options.placement)  # it says best what is wrong with a file
        placement = options.placement.read_text()
    deployed = deploy({name: options.model}, {name: placement})
    door = Door({name: deployed[name].model}, keys)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with bound(options.host, options.port) as listening:
        host, port = listening.getsockname()[:2]
        print(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        launcher = _launcher(deployed, options.in_process, {name: options.model}, {name: placement})
        asyncio.run(_run(door, launcher, deployed[name].plans.workers, listening))
    print("ended", flush=True)


def _keys(options: argparse.Namespace) -> Keys:
    from mstar.server.keys import Keys

    keys = options.api_key
    if options.api_key_file:
        try:
            keys = options.api_key_file.read_text().split()
        except OSError as error:
            what = f"{options.api_key_file}: cannot be read: {error.strerror}"
            raise LoadError(f"{what}\n  fix: pass a file with a key on each line") from error
        if not keys:
            raise LoadError(f"{options.api_key_file}: it holds no key\n  fix: write a key on each line")
    if not keys and not options.insecure and not _is_loopback(options.host):
        what = f"{options.host} can be reached from other machines, and there is no key"
        raise LoadError(f"{what}\n  fix: give --api-key-file, or --insecure if anybody may use it")
    return Keys(keys)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can stand for any address


def _launcher(
    deployed: Mapping[str, Deployed], in_process: bool, models: dict[str, str], placements: dict[str, str]
) -> Local | Together:
    if in_process:
        from mstar.launch.together import Together

        return Together(deployed)
    from mstar.launch.local import Local

    return Local(models, placements)


async def _run(door: Door, launcher: Local | Together, workers: Sequence[str], listening: Any) -> None:
    """Listen, start everything, let clients in; at the end, end everything."""
    from mstar.server.app import application
    from mstar.server.listen import Listener

    listener = Listener(door, application(door))
    serving = asyncio.create_task(listener.serve([listening]))
    try:
        front = await asyncio.to_thread(_start, door, launcher, workers)
    except BaseException:
        listener.should_exit = True
        await serving
        raise
    try:
        await asyncio.to_thread(door.prepare)  # not beside the start: in one process both import the same libraries
        if not serving.done():
            door.begin(front, lambda: _peers(launcher, workers), asyncio.get_running_loop())
            print("ready", flush=True)
        await serving
        print("ending", flush=True)
    finally:
        await asyncio.to_thread(launcher.stop)


def _start(door: Door, launcher: Local | Together, workers: Sequence[str]) -> FrontEnd:
    """Start everything, and tell how far it is."""
    from mstar.launch.local import Local
    from mstar.server.door import Phase
    from mstar.server.live import FrontEnd
    from mstar.wire.messages import Peer

    total = 1 + len(workers)

    def progress(news: str) -> None:
        door.phase = Phase("starting", door.phase.done + 1, total)
        print(f"[{door.phase.done}/{total}] {news}", flush=True)

    door.phase = Phase("starting", 0, total)
    if isinstance(launcher, Local):
        launcher.start(progress)
    else:
        launcher.start()
    front = FrontEnd(launcher.node, Peer("front", 0), launcher.conductor)
    launcher.add(front)
    return front


def _peers(launcher: Local | Together, workers: Sequence[str]) -> Sequence[Peer]:
    """The lives of conductor and workers that are there now."""
    from mstar.launch.local import Local
    from mstar.wire.messages import Peer

    dead = [peer for _, peer, _ in launcher.deaths] if isinstance(launcher, Local) else []
    lives = {name: 1 + max((one.incarnation for one in dead if one.name == name), default=-1) for name in workers}
    return (launcher.conductor, *(Peer(name, life) for name, life in lives.items()))
