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

from mstar.wire.frame import Codec, Seal
from mstar.wire.messages import Meet, Message, Peer
from mstar.wire.outside import Actor, Arrival, Outside
from mstar.wire.ways import Ways
from mstar.wire.whereabouts import Whereabouts

TICK = 0.05
"""How often actors are ticked, in seconds."""
TURN_MESSAGES = 4096
"""How many messages one turn hands out, so that actors who talk to each other keep nobody from their ticks."""

log = logging.getLogger("mstar.wire")


class Node:
    """Hosts the actors of one process. Without whereabouts and a codec it never leaves its process.

    `call` and `stop` may come from any thread; everything else belongs to the thread that runs the loop.
    """

    def __init__(self, whereabouts: Whereabouts | None, key: bytes, codec: Codec | None) -> None:
        self.counters: Counter[str] = Counter()
        self._epoll = select.epoll()
        self._outside = None
        self._whereabouts = whereabouts
        if whereabouts and codec:
            seal = Seal(key)  # first, because it refuses what is no key
            ways = Ways(whereabouts, self._epoll, key, self.counters)
            self._outside = Outside(ways, seal, codec, self.counters, self._rouse)
        self._actors: dict[Peer, Actor] = {}
        self._arrived: deque[Arrival] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._next_tick = 0.0
        self._is_stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = Lock()
        self._epoll.register(self._wake, select.EPOLLIN)

    def add(self, actor: Actor) -> None:
        """Host an actor, and let others reach it."""
        if self._outside:
            self._outside.listen(actor)
        self._actors[actor.peer] = actor

    def send(self, sender: Peer, to: Peer, message: Message) -> None:
        """Say something to an actor, here or elsewhere. To a life that is over, nothing is said."""
        if actor := self._actors.get(to):
            self._arrived.append((actor, sender, message))
        elif self._outside:
            self._outside.say(sender, to, message)
        else:
            self.counters["dropped"] += 1

    def call(self, function: Callable[[], None]) -> None:
        """Run this on the loop, soon."""
        self._calls.append(function)
        self._rouse()

    def stop(self) -> None:
        """End the loop after this turn. What peers have not confirmed by then may be lost."""
        self._is_stopping = True
        self._rouse()

    def forget(self, peer: Peer) -> None:
        """This life is over: keep nothing for it, and believe nothing more that it says."""
        self._arrived = deque(arrival for arrival in self._arrived if arrival[1] != peer)
        if self._outside:
            self._outside.forget(peer)

    def meet(self, peer: Peer, address: str) -> None:
        """This life is to be found there."""
        if self._outside:
            self._outside.meet(peer, address)

    def present(self, actor: Peer, to: Peer) -> None:
        """Tell somebody where an actor of this node is found, if there are several hosts."""
        if self._whereabouts and self._whereabouts.ip:
            self.send(actor, to, Meet(actor, self._whereabouts.mine))

    def stock(self) -> dict[str, int]:
        """What is held here, counted."""
        held = {"arrived": len(self._arrived)}
        return held | self._outside.stock() if self._outside else held

    def run(self) -> None:
        """Run the loop until `stop`, then close everything, the codec too."""
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            with self._wake_lock:
                os.close(self._wake)
                self._wake = -1
            if self._outside:
                self._outside.close()
            self._epoll.close()

    def _rouse(self) -> None:
        with self._wake_lock:  # once closed, the number may be somebody else's
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _turn(self) -> None:
        files = self._wait()
        now = time.monotonic()
        if self._outside:
            self._arrived += self._outside.hear(now, files)
        for _ in range(len(self._calls)):
            self._try("a call", self._calls.popleft())
        budget = TURN_MESSAGES
        while self._arrived and budget:
            budget -= 1
            actor, sender, message = self._arrived.popleft()
            if isinstance(message, Meet):
                self.meet(message.peer, message.address)
            self._try(actor.peer, actor.receive, time.monotonic(), sender, message)  # those before took their time
        if now >= self._next_tick:
            self._next_tick = now + TICK
            for actor in list(self._actors.values()):
                self._try(actor.peer, actor.tick, now)
        if self._outside:
            self._outside.flush(now)

    def _wait(self) -> list[int]:
        """Wait until there is something to do. Returns the sockets with which it is."""
        wait = 0.0
        if not (self._arrived or (self._outside and self._outside.has_more)):
            due = min(self._next_tick, self._outside.due) if self._outside else self._next_tick
            wait = max(0.0, due - time.monotonic())
        files: list[int] = []
        for file, _ in self._epoll.poll(wait):
            if file == self._wake:
                os.eventfd_read(self._wake)
            else:
                files.append(file)
        return files

    def _try(self, who: Peer | str, function: Callable[..., None], *given: object) -> None:
        try:
            function(*given)
        except Exception:
            self.counters["raised"] += 1
            kinds = [type(one).__name__ for one in given]  # not what they hold: that is the client's
            log.exception("%s raised, given %s", who, kinds)
