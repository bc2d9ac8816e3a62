"""Node: the one loop of a process that does its talking. It hosts actors and carries messages between them.

Messages between actors of one node go by reference; those for other processes leave through outside.py, at the end of
each turn of the loop. A node does not know what messages mean, starts no process and never waits for a peer.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter, deque
from collections.abc import Callable
from threading import Lock

from mstar.wire.frame import FrameSigner, ValueCodec
from mstar.wire.messages import Message, Peer, PeerAddress
from mstar.wire.transport.address_book import AddressBook
from mstar.wire.transport.channels import Actor, Channels, IncomingMessage
from mstar.wire.transport.transport import Transport

TICK_INTERVAL_S = 0.05
"""How often actors are ticked, in seconds."""
MAX_MESSAGES_PER_TURN = 4096
"""How many messages one turn hands out, so that actors who talk to each other keep nobody from their ticks."""

log = logging.getLogger("mstar.wire")


class ActorLoop:
    """Hosts the actors of one process. Without whereabouts and a codec it never leaves its process.

    `call` and `stop` may come from any thread; everything else belongs to the thread that runs the loop.
    """

    def __init__(self, address_book: AddressBook | None, key: bytes, codec: ValueCodec | None) -> None:
        self.counters: Counter[str] = Counter()
        self._epoll = select.epoll()
        self._channels = None
        self._address_book = address_book
        if address_book and codec:
            seal = FrameSigner(key)  # first, because it refuses what is no key
            ways = Transport(address_book, self._epoll, key, self.counters)
            self._channels = Channels(ways, seal, codec, self.counters, self._wake_up)
        self._actors: dict[Peer, Actor] = {}
        self._inbox: deque[IncomingMessage] = deque()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._next_tick = 0.0
        self._is_stopping = False
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wakeup_lock = Lock()
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)

    def add(self, actor: Actor) -> None:
        """Host an actor, and let others reach it."""
        if self._channels:
            self._channels.listen(actor)
        self._actors[actor.peer] = actor

    def send(self, sender: Peer, to: Peer, message: Message) -> None:
        """Say something to an actor, here or elsewhere. To a life that is over, nothing is said."""
        if actor := self._actors.get(to):
            self._inbox.append((actor, sender, message))
        elif self._channels:
            self._channels.send(sender, to, message)
        else:
            self.counters["dropped"] += 1

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run this on the loop, soon."""
        self._callbacks.append(function)
        self._wake_up()

    def stop(self) -> None:
        """End the loop after this turn. What peers have not confirmed by then may be lost."""
        self._is_stopping = True
        self._wake_up()

    def forget(self, peer: Peer) -> None:
        """This life is over: keep nothing for it, and believe nothing more that it says."""
        self._inbox = deque(arrival for arrival in self._inbox if arrival[1] != peer)
        if self._channels:
            self._channels.forget(peer)

    def set_address(self, peer: Peer, address: str) -> None:
        """This life is to be found there."""
        if self._channels:
            self._channels.set_address(peer, address)

    def announce_address(self, actor: Peer, to: Peer) -> None:
        """Tell somebody where an actor of this node is found, if there are several hosts."""
        if self._address_book and self._address_book.ip:
            self.send(actor, to, PeerAddress(actor, self._address_book.own_address))

    def stats(self) -> dict[str, int]:
        """What is held here, counted."""
        held = {"inbox": len(self._inbox)}
        return held | self._channels.stats() if self._channels else held

    def run(self) -> None:
        """Run the loop until `stop`, then close everything, the codec too."""
        try:
            while not self._is_stopping:
                self._run_once()
        finally:
            with self._wakeup_lock:
                os.close(self._wakeup_fd)
                self._wakeup_fd = -1
            if self._channels:
                self._channels.close()
            self._epoll.close()

    def _wake_up(self) -> None:
        with self._wakeup_lock:  # once closed, the number may be somebody else's
            if self._wakeup_fd >= 0:
                os.eventfd_write(self._wakeup_fd, 1)

    def _run_once(self) -> None:
        files = self._poll()
        now = time.monotonic()
        if self._channels:
            self._inbox += self._channels.receive(now, files)
        for _ in range(len(self._callbacks)):
            self._call_safely("a call", self._callbacks.popleft())
        budget = MAX_MESSAGES_PER_TURN
        while self._inbox and budget:
            budget -= 1
            actor, sender, message = self._inbox.popleft()
            if isinstance(message, PeerAddress):
                self.set_address(message.peer, message.address)
            self._call_safely(
                actor.peer, actor.receive, time.monotonic(), sender, message
            )  # those before took their time
        if now >= self._next_tick:
            self._next_tick = now + TICK_INTERVAL_S
            for actor in list(self._actors.values()):
                self._call_safely(actor.peer, actor.tick, now)
        if self._channels:
            self._channels.flush(now)

    def _poll(self) -> list[int]:
        """Wait until there is something to do. Returns the sockets with which it is."""
        wait = 0.0
        if not (self._inbox or (self._channels and self._channels.has_more)):
            due = min(self._next_tick, self._channels.due) if self._channels else self._next_tick
            wait = max(0.0, due - time.monotonic())
        files: list[int] = []
        for file, _ in self._epoll.poll(wait):
            if file == self._wakeup_fd:
                os.eventfd_read(self._wakeup_fd)
            else:
                files.append(file)
        return files

    def _call_safely(self, source: Peer | str, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            self.counters["raised"] += 1
            kinds = [type(one).__name__ for one in arguments]  # not what they hold: that is the client's
            log.exception("%s raised, given %s", source, kinds)
