"""Toy model whose output is the tenant of its states: new, forked, sent to another worker, or computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import Component, Model, State, Text, loop, op, walk


@dataclass(frozen=True)
class EchoRequest:
    """Number of outputs, and seconds before each."""

    steps: int = 1
    pause_s: float = 0.0
    is_merged: bool = False
    """After the next client input, create a second state and use both in one walk."""


class EchoState(State):
    """State without content. Its export has no tenant: the worker that loads it must know the tenant."""

    def export(self) -> None:
        return None


class Echo(Component):
    def load_state(self, kind: type[Any], exported: None) -> Any:
        return self.make_state(kind)

    @op
    def append(self, state: EchoState) -> int:
        return 0

    @op
    def show(self, state: EchoState, pause_s: float) -> str:
        time.sleep(pause_s)
        return f"<{state.tenant}>"

    @op
    def show_both(self, left: EchoState, right: EchoState) -> str:
        return f"<{left.tenant}><{right.tenant}>"


class TenantEcho(Model):
    def __init__(self) -> None:
        self.echo = Echo()

    @walk
    def begin(self, state: EchoState) -> int:
        return self.echo.append(state)

    @walk
    def say(self, steps: int, pause_s: float, state: EchoState) -> Iterator[Text]:
        for _ in loop(steps=steps):
            yield Text(self.echo.show(state, pause_s))

    @walk
    def merge(self, left: EchoState, right: EchoState) -> Iterator[Text]:
        yield Text(self.echo.show_both(left, right))

    async def route(self, request: EchoRequest) -> None:
        state = self.echo.state(EchoState)
        await self.begin(state)
        await self.say(request.steps, request.pause_s, state.fork())
        if request.is_merged:
            await self.next_input()
            other = self.echo.state(EchoState)
            await self.begin(other)
            await self.merge(state, other)
