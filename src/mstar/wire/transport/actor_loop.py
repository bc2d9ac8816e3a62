"""Actor loop: the single-threaded epoll event loop of a process, which hosts actors and delivers their messages.

Messages between actors of one loop are passed by reference. Messages for other processes leave through
`channels.Channels`, once per turn of the loop. The loop does not interpret messages (except `PeerAddress`), starts no
process and never blocks on a peer.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Lock

from mstar.wire.frame import FrameSigner, ValueCodec
from mstar.wire.messages import Message, Peer, PeerAddress
from mstar.wire.transport.address_book import AddressBook
from mstar.wire.transport.channels import Actor, Channels, IncomingMessage
from mstar.wire.transport.transport import Transport

TICK_INTERVAL_S = 0.05
"""Seconds between two ticks of an actor that sets no interval."""
MAX_MESSAGES_PER_TURN = 4096
"""Maximum number of messages per turn, so that chatty actors do not starve ticks."""

log = logging.getLogger("mstar.wire")


@dataclass(frozen=True, slots=True)
class TickInterval:
    """Seconds between two ticks of an actor. From `min_s` on it ticks when the process is awake for something else.

    With min_s=0.2 and max_s=0.24 an actor that gets a message every 0.21 s wakes up for its messages only. When an
    actor is due, the actors whose last tick is half of `min_s` ago tick too: from then on they share their wake-ups.
    """

    min_s: float = TICK_INTERVAL_S
    max_s: float = TICK_INTERVAL_S


SLOW_TICKS = TickInterval(0.2, 0.24)
"""Ticks of an actor that works on messages and has timeouts of a second or more. An `ActiveClock` allows no fewer."""


class _Ticker:
    """When an actor ticks next: from `early_at` on if the process is awake, at `due_at` otherwise."""

    __slots__ = ("actor", "due_at", "early_at", "interval")

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.interval: TickInterval = getattr(actor, "tick_interval", TickInterval())
        self.early_at = self.due_at = 0.0


class ActorLoop:
    """Hosts the actors of one process. Without an address book and a codec it is limited to this process.

    `call_soon`, `try_run` and `stop` are thread-safe. Everything else belongs to the thread that has the turn: the one
    that runs the loop, or one in `try_run` while the loop waits.
    """

    def __init__(self, address_book: AddressBook | None, key: bytes, codec: ValueCodec | None) -> None:
        self.counters: Counter[str] = Counter()
        self._epoll = select.epoll()
        self._channels = None
        self._address_book = address_book
        if address_book and codec:
            signer = FrameSigner(key)  # first: it validates the key
            transport = Transport(address_book, self._epoll, key, self.counters)
            self._channels = Channels(transport, signer, codec, self.counters, self._wake_up)
        self._actors: dict[Peer, Actor] = {}
        self._tickers: dict[Peer, _Ticker] = {}
        self._inbox: deque[IncomingMessage] = deque()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._after_turn: list[Callable[[], None]] = []
        self._next_tick = self._next_early_tick = 0.0  # the earliest ones of all actors
        self._turn = Lock()  # held by the thread that has the turn; not while the loop waits
        self._waits_until = 0.0  # when the wait of the loop ends without an event
        self._is_stopping = False
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wakeup_lock = Lock()
        self._is_woken = False  # whether a wake-up was written that the loop has not read
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)

    def add(self, actor: Actor) -> None:
        """Host an actor, and accept connections for it."""
        if self._channels:
            self._channels.listen(actor)
        self._actors[actor.peer] = actor
        self._tickers[actor.peer] = _Ticker(actor)
        self._next_tick = self._next_early_tick = 0.0

    def tick_within(self, peer: Peer, seconds: float) -> None:
        """Set the maximum seconds until the next tick of an actor of this loop."""
        ticker = self._tickers[peer]
        due_at = time.monotonic() + seconds
        if due_at < ticker.due_at:
            ticker.due_at = due_at
            ticker.early_at = min(ticker.early_at, due_at)
            self._next_tick = min(self._next_tick, due_at)
            self._next_early_tick = min(self._next_early_tick, ticker.early_at)

    def send(self, sender: Peer, to: Peer, message: Message) -> None:
        """Send a message to an actor of this or another process. Messages to dead incarnations are dropped."""
        if actor := self._actors.get(to):
            self._inbox.append((actor, sender, message))
        elif self._channels:
            self._channels.send(sender, to, message)
        else:
            self.counters["dropped"] += 1

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run a function on the loop. Thread-safe."""
        self._callbacks.append(function)
        if not self._is_woken:  # reset before callbacks are taken, so that none is missed
            self._wake_up()

    def try_run(self, function: Callable[[], None]) -> bool:
        """Run a function in the calling thread and send its messages, if the loop has nothing to do. Thread-safe.

        Returns False, without a call, if the loop is busy or closed, or has callbacks that come first. A thread that
        has a result sends it so without waking up the loop: two thread switches less.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._callbacks or self._wakeup_fd < 0:
                return False
            try:
                self._call_safely("a callback", function)
            except BaseException as error:  # noqa: BLE001 - it ends the process, so the loop must raise it
                self._callbacks.append(partial(_raise, error))
            must_wake = bool(self._inbox or self._after_turn or self._callbacks)
            if self._channels:
                self._channels.flush(time.monotonic())
            must_wake |= self._due() < self._waits_until
        finally:
            self._turn.release()
        if must_wake:
            self._wake_up()
        return True

    def call_after_turn(self, function: Callable[[], None]) -> None:
        """Run a function at the end of this turn: it gets what all messages of the turn have caused."""
        self._after_turn.append(function)

    def stop(self) -> None:
        """Stop after this turn. Unacknowledged messages can be lost. Thread-safe."""
        self._is_stopping = True
        self._wake_up()

    def forget(self, peer: Peer) -> None:
        """Drop everything kept for a dead peer, and reject its further frames."""
        self._inbox = deque(arrival for arrival in self._inbox if arrival[1] != peer)
        if self._channels:
            self._channels.forget(peer)

    def set_address(self, peer: Peer, address: str) -> None:
        """Record the address of a peer."""
        if self._channels:
            self._channels.set_address(peer, address)

    def announce_address(self, actor: Peer, to: Peer) -> None:
        """Send the address of an actor of this loop to a peer, if there are several hosts."""
        if self._address_book and self._address_book.ip:
            self.send(actor, to, PeerAddress(actor, self._address_book.own_address))

    def stats(self) -> dict[str, int]:
        """Gauges of the loop and its channels."""
        counts = {"inbox": len(self._inbox)}
        return counts | self._channels.stats() if self._channels else counts

    def run(self) -> None:
        """Run until `stop`, then close all sockets and the codec."""
        try:
            while not self._is_stopping:
                self._run_once()
        finally:
            with self._turn:
                with self._wakeup_lock:
                    os.close(self._wakeup_fd)
                    self._wakeup_fd = -1
                if self._channels:
                    self._channels.close()
                self._epoll.close()

    def _wake_up(self) -> None:
        with self._wakeup_lock:  # once closed, the descriptor number can be reused
            if self._wakeup_fd >= 0:
                self._is_woken = True
                os.eventfd_write(self._wakeup_fd, 1)

    def _run_once(self) -> None:
        fds = self._poll()
        with self._turn:
            self._take_turn(fds)

    def _take_turn(self, fds: list[int]) -> None:
        now = time.monotonic()
        if self._channels:
            self._inbox += self._channels.receive(now, fds)
        for _ in range(len(self._callbacks)):
            self._call_safely("a callback", self._callbacks.popleft())
        budget = MAX_MESSAGES_PER_TURN
        while self._inbox and budget:
            budget -= 1
            actor, sender, message = self._inbox.popleft()
            if isinstance(message, PeerAddress):
                self.set_address(message.peer, message.address)
            # Not `now`: earlier messages of this turn took time.
            self._call_safely(actor.peer, actor.receive, time.monotonic(), sender, message)
        if now >= self._next_early_tick:  # also after a wake-up for something else
            self._tick(now)
        if self._channels:
            self._channels.flush(now)
        if self._after_turn:
            functions, self._after_turn = self._after_turn, []
            for function in functions:
                self._call_safely("a callback", function)

    def _tick(self, now: float) -> None:
        """Tick the actors that can tick now."""
        is_due = now >= self._next_tick
        for peer, ticker in list(self._tickers.items()):
            if now >= ticker.early_at - (ticker.interval.min_s / 2 if is_due else 0.0):
                ticker.early_at, ticker.due_at = now + ticker.interval.min_s, now + ticker.interval.max_s
                self._call_safely(peer, ticker.actor.tick, now)
        self._next_tick = min([ticker.due_at for ticker in self._tickers.values()], default=inf)
        self._next_early_tick = min([ticker.early_at for ticker in self._tickers.values()], default=inf)

    def _poll(self) -> list[int]:
        """Wait for I/O, a wake-up or the next deadline. Returns the ready descriptors."""
        timeout_s = 0.0
        with self._turn:
            if not (self._inbox or (self._channels and self._channels.has_more)):
                self._waits_until = due = self._due()
                timeout_s = max(0.0, due - time.monotonic()) if due < inf else -1.0
        fds: list[int] = []
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wakeup_fd:
                os.eventfd_read(self._wakeup_fd)
                self._is_woken = False
            else:
                fds.append(fd)
        return fds

    def _due(self) -> float:
        """Time of the next tick, resend or acknowledgement."""
        due = self._next_tick
        return min(due, self._channels.due(until=due)) if self._channels else due

    def _call_safely(self, source: Peer | str, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            self.counters["raised"] += 1
            kinds = [type(argument).__name__ for argument in arguments]  # not the content: it is client data
            log.exception("%s raised an exception on %s", source, kinds)


def _raise(error: BaseException) -> None:
    raise error
