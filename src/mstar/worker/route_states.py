"""States between walks: commands of the conductor to fork, free and send those that a route holds, and the parts of
states that other workers send ahead."""

from __future__ import annotations

from mstar.failpoints import hit
from mstar.wire import messages as m
from mstar.worker.commands import ExportedState, LoadAhead
from mstar.worker.outbox import Outbox
from mstar.worker.request_table import RequestTable
from mstar.worker.requests import WorkerRequest
from mstar.worker.state_table import StateTable
from mstar.worker.walk_data import WalkDataSender

StateCommand = m.ForkState | m.FreeStates | m.SendState | m.StateAhead


class RouteStates:
    """Executes state commands. A command of an earlier attempt is stale and ignored."""

    def __init__(
        self, peer: m.Peer, requests: RequestTable, states: StateTable, sender: WalkDataSender, outbox: Outbox
    ) -> None:
        self._peer = peer
        self._requests = requests
        self._states = states
        self._sender = sender
        self._outbox = outbox

    def execute(self, command: StateCommand) -> None:
        """Execute a command. An unknown state means that this worker restarted: the conductor must retry."""
        hit("worker.on_state_command")
        if isinstance(command, m.StateAhead):
            if isinstance(command.payload.content, ExportedState):  # else it could not be read
                self._outbox.command(LoadAhead(command.model, command.payload.content))
            return
        request = self._requests.get(command.rid)
        if request is None or request.attempt > command.attempt:
            return
        if isinstance(command, m.FreeStates):
            for number in command.states:
                request.route_states.pop(number, None)
        elif command.state not in request.route_states:
            self._outbox.send_to_conductor(
                m.RetryNeeded(command.rid, command.attempt, f"{self._peer} does not hold state {command.state}")
            )
        elif isinstance(command, m.ForkState):
            state = request.route_states[command.state]
            request.route_states[command.new_state] = self._states.fork(None, state)
        else:
            self._send_state(request, command)

    def _send_state(self, request: WorkerRequest, command: m.SendState) -> None:
        hit("worker.send_state")

        def state_input(exported: ExportedState) -> m.Message:
            return m.StateInput(
                command.rid, command.attempt, command.walk_index, command.input_index, m.Value(exported)
            )

        state = request.route_states[command.state]
        self._sender.export_state(request, command.attempt, state, command.to, state_input)
