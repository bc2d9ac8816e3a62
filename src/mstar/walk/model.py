"""Model: components, walks over them, and an optional route that handles a request.

A walk is a method. Calling it returns a lazy WalkCall: await it in a route, iterate over it for its emissions, or call
`run()`. The author's code is the same in each case. The eager run defined here is the reference for every runtime.
"""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, ParamSpec, TypeVar, cast, overload

from mstar.errors import LoadError, RouteError, WalkError, WalkNotRun, format_names, format_site, suggest_name
from mstar.walk import context
from mstar.walk.client_input import INTERRUPTED, ClientInput, InputLog, Interrupted, NextInput, received_emissions
from mstar.walk.component import Component
from mstar.walk.emissions import Emission
from mstar.walk.states import State

if TYPE_CHECKING:
    from mstar.graph import ir

E = TypeVar("E")
R = TypeVar("R")
M = TypeVar("M")
P = ParamSpec("P")


class WalkCall(Generic[E, R]):
    """A walk with its arguments, not yet run. Dropping it without running it causes a WalkNotRun warning."""

    def __init__(self, model: Model, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.model = model
        self.function = function
        self.name = function.__name__
        self.arguments = arguments
        self.site = context.author_site()
        self.is_started = False
        self.is_interruptible = False
        """Whether the next client input interrupts it."""
        self.emissions: list[E] = []
        self.lookahead_index = 0
        """Index of the lookahead that offered it; 0 if none did."""
        if (session := context.session.get()) is not None:
            session.on_walk_called(cast("WalkCall[object, object]", self))

    def __await__(self) -> Generator[WalkCall[E, R], R, R]:
        self.is_started = True
        return (yield self)

    def interruptible(self) -> InterruptibleWalk[E, R]:
        """Awaitable for a route: the walk's result, or INTERRUPTED if a client input arrives while it runs."""
        self.is_interruptible = True
        return InterruptibleWalk(self)

    def __iter__(self) -> Generator[E, None, R]:
        """Run the walk eagerly and yield its emissions."""
        self.is_started = True
        if context.session.get() is not None:
            raise RouteError(
                f"{format_site(self.site)}: a route iterated walk `{self.name}`\n  fix: await self.{self.name}(...)"
            )
        result = self.function(self.model, **self.arguments)
        if inspect.isgenerator(result):
            result = yield from cast("Generator[E, None, R]", result)
        return cast("R", result)

    def run(self) -> R:
        """Run the walk eagerly to completion; its emissions are then in `emissions`."""
        steps = iter(self)
        while True:
            try:
                self.emissions.append(next(steps))
            except StopIteration as stop:
                return stop.value

    def __del__(self) -> None:
        if not self.is_started:
            fix = f"await self.{self.name}(...) in a route; elsewhere iterate over it or call .run()"
            text = f"{format_site(self.site)}: walk `{self.name}` was called but never run\n  fix: {fix}"
            warnings.warn(text, WalkNotRun, stacklevel=2)


class InterruptibleWalk(Generic[E, R]):
    """Awaitable of a walk that a client input can interrupt."""

    def __init__(self, call: WalkCall[E, R]) -> None:
        self._call = call

    def __await__(self) -> Generator[WalkCall[E, R], R, R | Interrupted]:
        return (yield from self._call.__await__())


class Lookahead(Generic[R]):
    """A walk that a route has offered to run early; see `lookahead`."""

    def __init__(self, call: WalkCall[Any, R], index: int) -> None:
        self.call: WalkCall[Any, R] | None = call
        """None once it was committed or dropped."""
        self.index = index
        """-1 for the first one of a route, -2 for the next one: no walk has such an index."""
        self.site = call.site

    async def commit(self) -> R:
        """The result of the walk. Its states change now, as if the route had awaited the walk here."""
        call = self.call
        if call is None:
            fix = "commit it once; offer the walk again with lookahead(...) for another result"
            raise RouteError(f"{format_site(self.site)}: this lookahead was committed or dropped before\n  fix: {fix}")
        self.call = None
        return await call

    def drop(self) -> None:
        """Forget the walk. Nothing has changed. Without effect after `commit`."""
        self.call = None


def lookahead(call: WalkCall[Any, R]) -> Lookahead[R]:
    """Offer a walk that the route will probably need. A server can run it early, while it has nothing else to do.

    Results are the same whether it ran early or not. The walk has no emissions and only ops that can run twice. Its
    states belong to it until `commit` or `drop`: pass forks of those that the route uses meanwhile.
    """
    session, where = context.session.get(), format_site(call.site)
    call.is_started = True  # no WalkNotRun warning: it need not run
    if session is None:
        fix = f"call self.{call.name}(...).run()"
        raise RouteError(f"{where}: lookahead() is called outside of a route\n  fix: {fix}")
    from mstar.walk.lookahead_check import find_problem  # it imports the tracer

    if problem := find_problem(call.model, call.name, call.function):
        raise RouteError(f"{where}: {problem}")
    return session.add_lookahead(call)


@overload
def walk(
    function: Callable[Concatenate[M, P], Generator[E, None, R]],
) -> Callable[Concatenate[M, P], WalkCall[E, R]]: ...
@overload
def walk(function: Callable[Concatenate[M, P], Iterator[E]]) -> Callable[Concatenate[M, P], WalkCall[E, None]]: ...
@overload
def walk(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], WalkCall[Never, R]]: ...
def walk(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a model as a walk: traced once at startup, then served for every request."""
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    names = [*signature.parameters] if kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD} else None

    @functools.wraps(function)
    def call(self: Model, *args: Any, **kwargs: Any) -> Any:
        if (tracer := context.tracer.get()) is not None:
            what = f"a walk cannot call another walk, here `{function.__name__}`"
            return tracer.problem(what, "move the shared code into a plain method, and call it from both walks")
        if names is not None and not kwargs and len(args) == len(names) - 1:  # all of them: nothing to bind
            arguments = dict(zip(names[1:], args, strict=True))
        else:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments = dict(list(bound.arguments.items())[1:])
        states = [id(value) for value in arguments.values() if isinstance(value, State)]
        if len(set(states)) < len(states):
            raise RouteError(
                f"{format_site(context.author_site())}: walk `{function.__name__}` got one state for two inputs\n"
                f"  fix: pass state.fork() for one of them"
            )
        walk_call: WalkCall[Any, Any] = WalkCall(self, function, arguments)
        return walk_call

    call.__dict__["walk"] = function
    return call


def expand_union(annotation: Any) -> tuple[Any, ...]:
    """The members of a union annotation; a tuple of the annotation itself if it is no union."""
    is_union = isinstance(annotation, UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)


@dataclass
class Outcome:
    """Result of one request: its emissions in order, and the return value of its route or walk."""

    emissions: list[Emission]
    result: Any = None
    error: Exception | None = None
    """The error that ended the request; `emissions` are then those of the finished walks."""
    answers: list[Any] = field(default_factory=list[Any])
    """Results of the turns before each further client input."""


class Model:
    """A composite model: components as attributes, walks as methods, and an optional route."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Component):
            if value.name not in ("?", name):
                raise ValueError(
                    f"this component is already the attribute `{value.name}`\n"
                    f"  fix: create another component for `{name}`"
                )
            value.name = name
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # it would hide a mistyped component from a static type checker

        def __getattr__(self, name: str) -> Any:
            known = self.components()
            suggestion = suggest_name(name, known)
            if (tracer := context.tracer.get()) is not None and not name.startswith("_"):
                return tracer.missing(f"the model has no component `{name}`{suggestion}", known)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{suggestion}")

    def components(self) -> dict[str, Component]:
        """Components by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Component)}

    @classmethod
    def walks(cls) -> dict[str, Callable[..., Any]]:
        """Walks by name as plain functions, in order of definition."""
        walks: dict[str, Callable[..., Any]] = {}
        for parent in reversed(cls.__mro__):
            for name, member in vars(parent).items():
                if "walk" in getattr(member, "__dict__", ()):
                    walks[name] = member.__dict__["walk"]
        return walks

    def graphs(self) -> dict[str, ir.Walk]:
        """Trace every walk to a graph. Raises WalkError with all problems of all walks."""
        from mstar.walk.tracer import trace  # imported here: it doubles the import time of a model file

        traced = {name: trace(function, self) for name, function in self.walks().items()}
        problems = [problem for _, walk_problems in traced.values() for problem in walk_problems]
        if problems:
            raise WalkError(type(self).__name__, problems)
        return {name: graph for name, (graph, _) in traced.items()}

    async def route(self, request: Any, /) -> Any:
        """Handle one request. A model with one walk needs no route: the request is a mapping of its arguments."""
        walks = self.walks()
        if len(walks) != 1 or not isinstance(request, Mapping):
            raise RouteError(
                f"{type(self).__name__} has no route to choose between its walks {format_names(walks)}\n"
                f"  fix: async def route(self, request): await self.{next(iter(walks), 'walk')}(...)"
            )
        arguments = cast("Mapping[str, Any]", request)
        return await getattr(self, next(iter(walks)))(**arguments)

    @classmethod
    def request_type(cls) -> Any:
        """Annotated request type of its route; Any if it has no annotation, None if the model has no route."""
        if cls.route is Model.route:
            return None
        try:
            hints = typing.get_type_hints(cls.route, include_extras=True)
        except NameError as error:
            problem = f"the route of {cls.__name__} has an annotation that is undefined at run time: {error}"
            raise LoadError(f"{problem}\n  fix: import it outside of TYPE_CHECKING") from error
        hints.pop("return", None)
        return next(iter(hints.values()), Any)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode the token ids of Text emissions into text. A model that emits strings does not need it."""
        raise NotImplementedError(
            f"{type(self).__name__} emits tokens but does not define detokenize\n  fix: def detokenize(self, tokens)"
        )

    def warmup_requests(self) -> Sequence[Any]:
        """Requests to serve at startup, so that the first client does not wait for one-time work."""
        return ()

    def next_input(self, answer: Any = None) -> NextInput:
        """Awaitable for a route: the next client input, or None if the client has closed its inputs.

        `answer` is the result of the current turn, sent to the client.
        """
        return NextInput(answer)

    def run(self, request: Any, inputs: Sequence[ClientInput] = ()) -> Outcome:
        """Serve one request eagerly in this process: the reference for every other runtime.

        `inputs` are further client inputs while the request runs.
        """
        outcome, log, walks = Outcome([]), InputLog(inputs), 0
        route = RouteRun(self, request, lambda component, kind: component.new_state(kind))
        awaited = route.advance(None)
        while awaited is not None:
            if isinstance(awaited, NextInput):
                outcome.answers.append(awaited.answer)
                awaited = route.advance(log.consume())
                continue
            interruption = log.find_interruption(walks) if awaited.is_interruptible else None
            walks += 1
            if interruption is not None:  # run on copies, so that the route's states do not change
                arguments = awaited.arguments.items()
                awaited.arguments = {
                    name: value.fork() if isinstance(value, State) else value for name, value in arguments
                }
            result = awaited.run()
            emitted = awaited.emissions
            if interruption is not None:
                emitted = received_emissions(emitted, outcome.emissions, interruption)
                result = INTERRUPTED
            outcome.emissions.extend(emitted)
            awaited = route.advance(result)
        outcome.result = route.result
        return outcome


class RouteRun:
    """Sans-IO driver of one request's route: `advance` returns the next walk to run, one at a time.

    It does no IO and reads no clock, so the conductor can record the results and replay them.
    """

    def __init__(self, model: Model, request: Any, new_state: Callable[[Component, Any], Any]) -> None:
        self.result: Any = None
        self.is_done = False
        self._new_state = new_state
        self._calls: list[WalkCall[object, object]] = []
        """Calls of walks that the route has not awaited."""
        self.lookaheads: list[Lookahead[Any]] = []
        """Those that the route had not committed or dropped at its current await, in order."""
        self._lookahead_count = 0
        self._route = model.route(request)

    def new_state(self, component: Component, kind: type[State]) -> State:
        """Create a state for the route."""
        return self._new_state(component, kind)

    def on_walk_called(self, call: WalkCall[object, object]) -> None:
        """Record a call of a walk by the route."""
        self._calls.append(call)

    def add_lookahead(self, call: WalkCall[Any, Any]) -> Lookahead[Any]:
        """Record that the route offers a walk to run early."""
        self._lookahead_count += 1
        self._check_states(call)
        handle = Lookahead(call, -self._lookahead_count)
        call.lookahead_index = handle.index
        values = call.arguments.items()  # the route can change a list before it commits
        call.arguments = {name: value if isinstance(value, State) else deepcopy(value) for name, value in values}
        self.lookaheads.append(handle)
        return handle

    def close(self) -> None:
        """Cancel the route at its current await, after one of its walks has failed."""
        for call in self._calls:
            call.is_started = True  # no WalkNotRun warning for walks that never run because of the failure
        self._calls.clear()
        self.lookaheads.clear()
        self._route.close()

    def advance(self, result: Any) -> WalkCall[Any, Any] | NextInput | None:
        """Resume the route with the result of its await; return what it awaits next, or None when it has returned."""
        token = context.session.set(self)
        try:
            awaited: Any = self._route.send(result)
        except StopIteration as stop:
            self.result = stop.value
            self.is_done = True
            awaited = None
        finally:
            context.session.reset(token)
        if self.lookaheads:
            self._update_lookaheads(awaited)
        if awaited is not None and not isinstance(awaited, WalkCall | NextInput):
            fix = "await only walks and self.next_input()"
            raise RouteError(f"a route awaited a {type(awaited).__name__}\n  fix: {fix}")
        self._calls = [call for call in self._calls if not call.is_started]  # the others would keep their arguments
        if self._calls and self.is_done:
            for call in self._calls:
                call.is_started = True  # this error replaces the WalkNotRun warning
            first = self._calls[0]
            problem = f"{format_site(first.site)}: the route called walk `{first.name}` but did not await it"
            raise RouteError(f"{problem}\n  fix: await self.{first.name}(...)")
        return cast("WalkCall[Any, Any] | NextInput | None", awaited)

    def _update_lookaheads(self, awaited: Any) -> None:
        """Forget what was committed or dropped. Drop the others if the route has returned."""
        if self.is_done:
            for handle in self.lookaheads:
                handle.drop()
        self.lookaheads = [handle for handle in self.lookaheads if handle.call is not None]
        if isinstance(awaited, WalkCall):
            self._check_states(cast("WalkCall[Any, Any]", awaited))

    def _check_states(self, call: WalkCall[Any, Any]) -> None:
        """Report a walk that uses a state of an open lookahead: its result would depend on when that one runs."""
        used = [value for value in call.arguments.values() if isinstance(value, State)]
        for handle in self.lookaheads:
            other = handle.call
            for name, value in other.arguments.items() if other is not None and used else ():
                if any(value is state for state in used):
                    raise RouteError(
                        f"{format_site(call.site)}: walk `{call.name}` got a state that a lookahead of "
                        f"{format_site(handle.site)} has as `{name}`\n"
                        f"  fix: pass state.fork() to the lookahead, or commit or drop it before this walk"
                    )
