"""Engine thread of a worker: executes the core's commands in order and reports their results. It owns all states.

Long batches run in this thread, so that the actor keeps reading messages. Their results are processed and sent in it
too while the actor waits (`ActorLoop.try_run`). A batch that is known to take less time than a thread switch runs
inline in the caller's thread if the engine is idle. Workers in one process share components, so a lock makes them take
turns.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mstar.engine.engine import Engine
from mstar.engine.jobs import JobFailed, Result
from mstar.engine.tracebacks import strip_traceback
from mstar.errors import DeviceFailed
from mstar.failpoints import hit
from mstar.walk.component import Component, Op
from mstar.walk.model import Model
from mstar.walk.states import State
from mstar.worker.black_box import BlackBox
from mstar.worker.commands import (
    Batch,
    BatchFinished,
    Command,
    CreateState,
    EvictFirst,
    Export,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadAhead,
    LoadState,
    StateRef,
)

if TYPE_CHECKING:
    from mstar.nn.device_timer import DeviceTimer

log = logging.getLogger("mstar.worker")

Report = BatchFinished | ExportFinished
INLINE_BATCH_LIMIT_S = 0.001
"""Maximum expected seconds of a batch that runs inline instead of in the engine thread."""


class EngineThread:
    """Runs batches of the components of these models. `report` is called in the engine's thread.

    Execution holds `execution_lock`, which must be the same for all engine threads over the same components.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        engine: Engine,
        report: Callable[[Report], None],
        execution_lock: threading.Lock,
        black_box: BlackBox | None = None,
        end_process: Callable[[DeviceFailed], None] | None = None,
    ) -> None:
        self._components = {name: model.components() for name, model in models.items()}
        self._ops = {
            model: {name: component.ops() for name, component in components.items()}
            for model, components in self._components.items()
        }
        self._engine = engine
        self._report = report
        self._execution_lock = execution_lock
        self._black_box = black_box
        self._end_process = end_process
        """Called after a failure of the device: a new process can use it, this one cannot."""
        self.op_cpu_s = 0.0
        """CPU seconds of batches, in the threads that ran them. Threads of libraries are not included."""
        self._timers: dict[int, DeviceTimer] = {}
        """Timers of the batches that a device has not finished, by number of the batch."""
        self.loaded: frozenset[str] | None = None
        """Components that this worker holds, each as "model.component"; None if it holds all."""
        self._states: dict[int, State | Exception] = {}
        self._origin: dict[int, tuple[str, str, str]] = {}
        """Model, component and kind of each state."""
        self._state_numbers: dict[int, int] = {}
        """State numbers by identity of the state."""
        self._submitted = 0
        self._executed = 0
        """Command lists that the thread has executed; it is idle if this equals `_submitted`."""
        self._commands: queue.SimpleQueue[list[Command] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mstar-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, commands: list[Command], *, may_run_inline: bool) -> list[Report]:
        """Execute commands after all earlier ones. Returns the reports of those that ran inline."""
        hit("worker.submit")
        is_idle = may_run_inline and self._submitted == self._executed and all(map(_is_quick, commands))
        if is_idle and self._execution_lock.acquire(blocking=False):
            try:
                return [report for command in commands if (report := self._execute(command)) is not None]
            finally:
                self._execution_lock.release()
        self._submitted += 1
        self._commands.put(commands)
        return []

    def stop(self) -> None:
        """Stop the thread after the commands that it has."""
        self._commands.put(None)
        self._thread.join(5.0)

    def stats(self) -> dict[str, int]:
        """Number of states, and the memory statistics of each component that this worker holds."""
        counts = {"engine_states": len(self._states)}
        for model, components in self._components.items():
            for name, component in components.items():
                if self.loaded is not None and f"{model}.{name}" not in self.loaded:
                    continue
                counts |= {f"{model}.{name}.{key}": count for key, count in component.memory_stats().items()}
        return counts

    def _run(self) -> None:
        while self._execute_next():
            self._executed += 1

    def _execute_next(self) -> bool:
        """Wait for a command list and execute it. Returns False after `stop`."""
        commands = self._commands.get()
        for command in commands or ():
            with self._execution_lock:
                report = self._execute(command)
            if report is not None:
                self._report(report)
        return commands is not None

    def _execute(self, command: Command) -> Report | None:
        match command:
            case Batch():
                return self._run_batch(command)
            case Export():
                return ExportFinished(command.ticket, self._export_state(command))
            case LoadAhead():
                self._load_ahead(command)
            case Free():
                for number in command.states:
                    self._free_state(number)
            case CreateState():
                self._create_state(command)
            case Fork():
                self._fork_state(command)
            case LoadState():
                self._load_state(command)
            case EvictFirst():
                states = (self._states.get(number) for number in command.states)
                self._engine.eviction.set_first((each for each in states if isinstance(each, State)), command.is_first)
        return None

    # ---------------------------------------------------------------- states
    def _add_state(self, number: int, origin: tuple[str, str, str], make: Callable[[Component], State]) -> None:
        """Create a state. If that fails, every call that uses the state fails with the error."""
        hit("engine.add")
        try:
            state = make(self._components[origin[0]][origin[1]])
        except Exception as error:  # noqa: BLE001 - it fails only the request that owns the state
            self._states[number] = strip_traceback(error)
        else:
            self._states[number] = state
            self._state_numbers[id(state)] = number
        self._origin[number] = origin

    def _create_state(self, command: CreateState) -> None:
        def create(owner: Component) -> State:
            return self._engine.new_state(owner, owner.state_kinds()[command.kind], command.tenant)

        self._add_state(command.state, (command.model, command.component, command.kind), create)

    def _load_state(self, command: LoadState) -> None:
        exported = command.exported

        def load(owner: Component) -> State:
            return self._engine.load(owner, owner.state_kinds()[exported.kind], exported.data, command.tenant)

        self._add_state(command.state, (command.model, exported.component, exported.kind), load)

    def _fork_state(self, command: Fork) -> None:
        hit("engine.fork")
        state = self._states[command.state]

        def fork(_: Component) -> State:
            if isinstance(state, Exception):
                raise state
            return self._engine.fork(state)

        self._add_state(command.copy, self._origin[command.state], fork)

    def _free_state(self, number: int) -> None:
        hit("engine.free")
        state = self._states.pop(number, None)
        self._origin.pop(number, None)
        self._state_numbers.pop(id(state), None)

    def _export_state(self, command: Export) -> ExportedState | Exception | None:
        hit("engine.export")
        state = self._states[command.state]
        if isinstance(state, Exception):
            return state
        _, component, kind = self._origin[command.state]
        try:
            if not command.is_ahead:
                return ExportedState(component, kind, self._engine.export(state, command.to))
            exported = self._engine.export_ahead(state, command.to)
            return None if exported is None else ExportedState(component, kind, exported)
        except Exception as error:  # noqa: BLE001 - it fails only the request that owns the state
            return strip_traceback(error)

    def _load_ahead(self, command: LoadAhead) -> None:
        """Keep a part of a state. If that fails, the state is computed again."""
        hit("engine.load_ahead")
        exported = command.exported
        component = self._components[command.model][exported.component]
        try:
            self._engine.load_ahead(component, component.state_kinds()[exported.kind], exported.data)
        except Exception:
            log.exception("cannot keep a part of a state of %s.%s", command.model, exported.component)

    # ---------------------------------------------------------------- batches
    def _run_batch(self, batch: Batch) -> BatchFinished:
        hit("engine.batch")
        component = self._components[batch.model][batch.key.component]
        op = self._ops[batch.model][batch.key.component][batch.key.op]
        if self._black_box is not None:
            self._black_box.write(batch.suspects)
        if component.device is not None:
            self._start_timer(component, batch.number)
        start, cpu_start = time.perf_counter(), time.thread_time()
        try:
            results = self._run_jobs(component, op, batch)
        except DeviceFailed as error:
            self._timers.clear()
            if self._end_process is not None:
                self._end_process(error)
            results: list[Result] = [JobFailed(strip_traceback(error))] * len(batch.jobs)
        seconds = time.perf_counter() - start
        self.op_cpu_s += time.thread_time() - cpu_start
        if self._black_box is not None:
            self._black_box.clear()
        evicted = [self._state_numbers.get(id(state), 0) for state in self._engine.take_evicted()]
        costs = None
        if batch.number in self._timers:
            self._timers[batch.number].stop()
            finished = self._take_costs()
            seconds, costs = finished.get(batch.number, seconds), tuple(finished.items())
        return BatchFinished(batch.number, results, seconds, tuple(evicted), costs)

    def _start_timer(self, component: Component, number: int) -> None:
        from mstar.nn.device_timer import start_timer  # imports torch

        if (timer := start_timer(component.device)) is not None:
            self._timers[number] = timer

    def _take_costs(self) -> dict[int, float]:
        """Seconds of the batches that the device has finished since the last call."""
        costs = {number: seconds for number, timer in self._timers.items() if (seconds := timer.seconds()) is not None}
        for number in costs:
            del self._timers[number]
        return costs

    def _run_jobs(self, component: Component, op: Op, batch: Batch) -> list[Result]:
        """Run jobs with the states themselves in place of their references, which are restored afterwards."""
        hit("engine.jobs")
        jobs = batch.jobs
        if not op.states:
            return self._engine.run(component, op, jobs, time_limit_s=batch.time_limit_s)
        results: list[Result | None] = [None] * len(jobs)
        original_arguments = [job.arguments for job in jobs]
        for row, job in enumerate(jobs):
            states: dict[str, Any] = {}
            for name in op.states:
                ref = job.arguments.get(name)
                if isinstance(ref, StateRef):
                    states[name] = state = self._states[ref.number]
                    if isinstance(state, Exception):
                        results[row] = JobFailed(state)
            job.arguments = job.arguments | states
        runnable = [row for row, result in enumerate(results) if result is None]
        finished = self._engine.run(component, op, [jobs[row] for row in runnable], time_limit_s=batch.time_limit_s)
        for row, result in zip(runnable, finished, strict=True):
            results[row] = result
        for job, arguments in zip(jobs, original_arguments, strict=True):
            job.arguments = arguments
        return [result for result in results if result is not None]


def _is_quick(command: Command) -> bool:
    if isinstance(command, Batch):
        return command.expected_s is not None and command.expected_s < INLINE_BATCH_LIMIT_S
    return not isinstance(command, LoadState | LoadAhead | Export)
