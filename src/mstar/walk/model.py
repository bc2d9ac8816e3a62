"""Models: components, the walks over them, and perhaps a route.

A walk is an ordinary method. Called, it gives a WalkCall that does nothing yet: await it in a route, iterate it for its
emissions, or `run()` it. The code is the same in each case; only who runs it differs.
"""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, ParamSpec, TypeVar, cast, overload

from mstar.errors import LoadError, RouteError, WalkError, WalkNotRun, format_names, format_site
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
    """A walk with its arguments, not yet run. Dropping it unread is a mistake, and says so."""

    def __init__(self, model: Model, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.model = model
        self.function = function
        self.name = function.__name__
        self.arguments = arguments
        self.site = context.author_site()
        self.is_started = False
        self.is_interruptible = False
        """Whether it ends when the client says more."""
        self.emissions: list[E] = []
        if (session := context.session.get()) is not None:
            session.on_walk_called(cast("WalkCall[object, object]", self))

    def __await__(self) -> Generator[WalkCall[E, R], R, R]:
        self.is_started = True
        return (yield self)

    def interruptible(self) -> InterruptibleWalk[E, R]:
        """For a route to await: the walk until it ends, or is cut by what the client says meanwhile; then CUT."""
        self.is_interruptible = True
        return InterruptibleWalk(self)

    def __iter__(self) -> Generator[E, None, R]:
        """Run the walk eagerly; its emissions as they come."""
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
        """Run the walk eagerly to its end. Its emissions are then in `emissions`."""
        steps = iter(self)
        while True:
            try:
                self.emissions.append(next(steps))
            except StopIteration as stop:
                return stop.value

    def __del__(self) -> None:
        if not self.is_started:
            fix = f"await self.{self.name}(...) in a route; elsewhere iterate it, or .run()"
            text = f"{format_site(self.site)}: walk `{self.name}` was called but never run\n  fix: {fix}"
            warnings.warn(text, WalkNotRun, stacklevel=2)


class InterruptibleWalk(Generic[E, R]):
    """A walk that what the client says may cut."""

    def __init__(self, call: WalkCall[E, R]) -> None:
        self._call = call

    def __await__(self) -> Generator[WalkCall[E, R], R, R | Interrupted]:
        return (yield from self._call.__await__())


@overload
def walk(
    function: Callable[Concatenate[M, P], Generator[E, None, R]],
) -> Callable[Concatenate[M, P], WalkCall[E, R]]: ...
@overload
def walk(function: Callable[Concatenate[M, P], Iterator[E]]) -> Callable[Concatenate[M, P], WalkCall[E, None]]: ...
@overload
def walk(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], WalkCall[Never, R]]: ...
def walk(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a model as a walk: traced once at start-up, served many times."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(self: Model, *args: Any, **kwargs: Any) -> Any:
        if (tracer := context.tracer.get()) is not None:
            what = f"it calls walk `{function.__name__}`, and walks do not call walks"
            return tracer.problem(what, "move the shared code into a plain method, and call that from both")
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
        states = [id(value) for value in arguments.values() if isinstance(value, State)]
        if len(set(states)) < len(states):
            raise RouteError(
                f"{format_site(context.author_site())}: walk `{function.__name__}` was given one state for two inputs\n"
                f"  fix: fork() it for one of them"
            )
        made: WalkCall[Any, Any] = WalkCall(self, function, arguments)
        return made

    call.__dict__["walk"] = function
    return call


def expand_union(annotation: Any) -> tuple[Any, ...]:
    """The types of request that an annotation stands for."""
    is_union = isinstance(annotation, UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)


@dataclass
class Outcome:
    """What one request gave: its emissions in order, and what its route or walk returned."""

    emissions: list[Emission]
    result: Any = None
    error: Exception | None = None
    """What ended it early; its emissions are then those of the walks that had ended."""
    answers: list[Any] = field(default_factory=list[Any])
    """What the client was told each time before it said more."""


class Model:
    """A composite: components as attributes, walks as methods, and perhaps a route."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Component):
            if value.name not in ("?", name):
                raise ValueError(f"this component is already `{value.name}`; `{name}` needs one of its own")
            value.name = name
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # it would hide a mistyped component from a static checker

        def __getattr__(self, name: str) -> Any:
            known = self.components()
            if (tracer := context.tracer.get()) is not None and not name.startswith("_"):
                return tracer.missing(f"the model has no component `{name}`{nearest(name, known)}", known)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{nearest(name, known)}")

    def components(self) -> dict[str, Component]:
        """The components by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Component)}

    @classmethod
    def walks(cls) -> dict[str, Callable[..., Any]]:
        """The walks by name, as their plain functions, in the order they were written."""
        found: dict[str, Callable[..., Any]] = {}
        for parent in reversed(cls.__mro__):
            for name, member in vars(parent).items():
                if "walk" in getattr(member, "__dict__", ()):
                    found[name] = member.__dict__["walk"]
        return found

    def graphs(self) -> dict[str, ir.Walk]:
        """Every walk as a graph. Raises WalkError with all problems of all walks."""
        from mstar.walk.tracer import trace  # importing a model takes half the time without it

        traced = {name: trace(function, self) for name, function in self.walks().items()}
        problems = [problem for _, found in traced.values() for problem in found]
        if problems:
            raise WalkError(type(self).__name__, problems)
        return {name: graph for name, (graph, _) in traced.items()}

    async def route(self, request: Any, /) -> Any:
        """What to do for one request. A model with one walk needs no route: the request is its arguments."""
        walks = self.walks()
        if len(walks) != 1 or not isinstance(request, Mapping):
            raise RouteError(
                f"{type(self).__name__} has the walks {format_names(walks)} and no route, so a request cannot choose\n"
                f"  fix: async def route(self, request): await self.{next(iter(walks), 'walk')}(...)"
            )
        arguments = cast("Mapping[str, Any]", request)
        return await getattr(self, next(iter(walks)))(**arguments)

    @classmethod
    def request_type(cls) -> Any:
        """What its route takes, as it is annotated; Any if it is not, None if it has no route of its own."""
        if cls.route is Model.route:
            return None
        try:
            hints = typing.get_type_hints(cls.route, include_extras=True)
        except NameError as error:
            what = f"the route of {cls.__name__} is annotated with what is not there when it runs: {error}"
            raise LoadError(f"{what}\n  fix: import it outside of TYPE_CHECKING") from error
        hints.pop("return", None)
        return next(iter(hints.values()), Any)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its Text emissions as text, wherever they were made. Who emits strings has nothing to spell."""
        raise NotImplementedError(
            f"{type(self).__name__} emits tokens and cannot detokenize them\n  fix: def detokenize(self, tokens)"
        )

    def warmup_requests(self) -> Sequence[Any]:
        """Requests to be served before clients come, so that no client waits for what only the first one takes."""
        return ()

    def next_input(self, answer: Any = None) -> NextInput:
        """For a route to await: what the client says next, or None if it says no more.

        `answer` is what the client is told of what it has said so far.
        """
        return NextInput(answer)

    def run(self, request: Any, inputs: Sequence[ClientInput] = ()) -> Outcome:
        """Serve one request eagerly, here and now: the oracle of every other way to run it.

        `inputs` is what its client says while it runs.
        """
        outcome, ears, walks = Outcome([]), InputLog(inputs), 0
        route = RouteRun(self, request, lambda component, kind: component.make_state(kind))
        wanted = route.advance(None)
        while wanted is not None:
            if isinstance(wanted, NextInput):
                outcome.answers.append(wanted.answer)
                wanted = route.advance(ears.consume())
                continue
            cut = ears.find_interruption(walks) if wanted.is_interruptible else None
            walks += 1
            if cut is not None:  # it runs on copies: its states stay as they are
                given = wanted.arguments.items()
                wanted.arguments = {name: one.fork() if isinstance(one, State) else one for name, one in given}
            result = wanted.run()
            emitted = wanted.emissions
            outcome.emissions.extend(emitted if cut is None else received_emissions(emitted, outcome.emissions, cut))
            wanted = route.advance(result if cut is None else INTERRUPTED)
        outcome.result = route.result
        return outcome


class RouteRun:
    """One request's route, driven from outside: it hands out the walks it wants, one at a time.

    It does no IO and keeps no clock, so a conductor can record the results and replay them.
    """

    def __init__(self, model: Model, request: Any, new_state: Callable[[Component, Any], Any]) -> None:
        self.result: Any = None
        self.is_done = False
        self._new_state = new_state
        self._calls: list[WalkCall[object, object]] = []
        self._route = model.route(request)

    def new_state(self, component: Component, kind: type[State]) -> State:
        """The route asked for a state."""
        return self._new_state(component, kind)

    def on_walk_called(self, call: WalkCall[object, object]) -> None:
        """The route called a walk."""
        self._calls.append(call)

    def close(self) -> None:
        """Give the route up where it waits: a walk of it has failed."""
        for call in self._calls:
            call.is_started = True  # nobody forgot the walks that now never run
        self._calls.clear()
        self._route.close()

    def advance(self, result: Any) -> WalkCall[Any, Any] | NextInput | None:
        """Give what the route awaited; get the next walk, or that it waits for more; None when it has ended."""
        token = context.session.set(self)
        try:
            wanted: Any = self._route.send(result)
        except StopIteration as stop:
            self.result = stop.value
            self.is_done = True
            wanted = None
        finally:
            context.session.reset(token)
        if wanted is not None and not isinstance(wanted, WalkCall | NextInput):
            fix = "await walks and self.next_input() only; they are all that waits"
            raise RouteError(f"a route awaited a {type(wanted).__name__}\n  fix: {fix}")
        dropped = [call for call in self._calls if not call.is_started]
        if dropped and self.is_done:
            for call in dropped:
                call.is_started = True  # said here, louder than the warning
            first = dropped[0]
            text = f"{format_site(first.site)}: the route called walk `{first.name}` and never awaited it"
            raise RouteError(f"{text}\n  fix: await self.{first.name}(...)")
        return cast("WalkCall[Any, Any] | NextInput | None", wanted)
