"""Request context: request id, tenant, SLO, status and error code of one HTTP request or WebSocket.

It exists before the body is read and outlives the response: access logs, metrics and traces read it.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import msgspec
from starlette.types import Scope

from mstar.server.access.api_keys import Tenant
from mstar.server.access.load_shedding import Slot
from mstar.server.access.slo import apply_slo_header, as_best_effort
from mstar.server.endpoint import Endpoint
from mstar.server.errors import MAX_EXPOSED_CHARS, ApiError
from mstar.server.inputs.memory_budget import MemoryBudget, Reservation
from mstar.wire.failure import NO_FAILURE, Failure
from mstar.wire.slo import Slo

CLIENT_CLOSED_REQUEST = 499
"""Status of a request whose client disconnected before the response was complete (nginx's 499)."""
_OPERATOR_REQUIRED = (
    "this needs an operator key; fix: send one, or configure one with --operator-key-file or with "
    'role = "operator" in [[api_keys.tenant]]'
)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestContext:
    """What is known of a request before its body is read, and how the request ended."""

    __slots__ = (
        *("bytes_in", "bytes_out", "code", "endpoint", "error_message", "error_type", "failure", "id"),
        *("has_effects", "is_started", "memory", "slo", "slot", "status", "tenant"),
    )

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.tenant: Tenant | None = None
        self.memory: Reservation | None = None
        """Memory of its inputs; None before the first byte is reserved."""
        self.slot: Slot | None = None
        """Its place in the limit of requests; None if it does not count."""
        self.slo = Slo()
        self.bytes_in = self.bytes_out = 0
        """Bytes of bodies and WebSocket messages so far."""
        self.endpoint = "none"
        """Path of the endpoint; the `endpoint` label of request metrics."""
        self.has_effects = False
        """Whether a tool was called for it: a client that sends it again repeats the effect."""
        self.is_started = False
        """Whether the head of the response was sent."""
        self.status = CLIENT_CLOSED_REQUEST
        self.code = ""
        """Error code, empty unless the request failed."""
        self.error_message = ""
        """Message of the error as the client got it, empty unless the request failed."""
        self.error_type = ""
        """Class name of the exception that failed the request, empty without one."""
        self.failure = NO_FAILURE
        """Where that exception was raised, without its traceback: the log has it."""

    @property
    def tenant_name(self) -> str:
        """Name of the tenant, empty without one."""
        return self.tenant.name if self.tenant else ""

    @property
    def is_operator(self) -> bool:
        """Whether the request was sent with an operator key, or to a server without keys."""
        return self.tenant is not None and self.tenant.is_operator

    def enter_endpoint(self, endpoint: Endpoint, slo_header: str) -> None:
        """Set the endpoint and the SLO. Raises ApiError if the key lacks the role, or if the SLO header is invalid."""
        self.endpoint = endpoint.path
        if endpoint.needs_operator and not self.is_operator:
            raise ApiError(403, "operator_required", _OPERATOR_REQUIRED)
        slo = self.tenant.slo if self.tenant else Slo()
        self.slo = apply_slo_header(as_best_effort(slo) if endpoint.best_effort else slo, slo_header)

    def reserve_memory(self, budget: MemoryBudget) -> Reservation:
        """The reservation of this request in the memory budget of inputs."""
        if self.memory is None:
            self.memory = Reservation(budget, self.tenant_name)
        return self.memory

    def take_memory(self) -> Reservation | None:
        """Hand over its reservation: the caller closes it, after the end of the request. None if it has none."""
        memory, self.memory = self.memory, None
        return memory

    def release_memory(self) -> None:
        """Release the memory of its inputs, at the end of the request."""
        if self.memory is not None:
            self.memory.close()

    def release_slot(self) -> None:
        """Leave the limit of requests: the request has ended in the runtime."""
        if self.slot is not None:
            self.slot.release()

    def record_effect(self) -> None:
        """Record that a tool is called for the request."""
        self.has_effects = True

    def record_error(self, error: ApiError) -> None:
        """Record that the request fails. Overrides a status that was already sent."""
        self.status, self.code, self.error_message = error.status, error.code, error.message[:MAX_EXPOSED_CHARS]

    def record_failure(self, error_type: str, failure: Failure) -> None:
        """Record the exception because of which the request fails. The first one counts."""
        if not self.error_type:
            self.error_type, self.failure = error_type, msgspec.structs.replace(failure, traceback="")

    @property
    def error(self) -> dict[str, str] | None:
        """Why the request failed, without paths: a client can read it. None unless it failed."""
        if not self.code:
            return None
        failure = self.failure
        return {
            "message": self.error_message,
            "type": self.error_type,
            "location": Path(failure.location).name,
            "op": failure.op,
            "walk": failure.walk,
            "process": failure.process,
        }


def read_headers(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case. Of several with a name, the first one counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def request_id_from(header: str) -> str:
    """The request id from the X-Request-Id header, or a new one if the header is empty or malformed."""
    return header if _REQUEST_ID.fullmatch(header) else secrets.token_hex(16)
