"""Request context: request id, tenant, SLO, status and error code of one HTTP request or WebSocket.

It exists before the body is read and outlives the response: access logs, metrics and traces read it.
"""

from __future__ import annotations

import re
import uuid

from mstar.server.access.api_keys import Tenant
from mstar.server.access.slo import apply_slo_header, as_best_effort
from mstar.server.endpoint import Endpoint
from mstar.server.errors import ApiError
from mstar.wire.slo import Slo

CLIENT_CLOSED_REQUEST = 499
"""Status of a request whose client disconnected before the response was complete (nginx's 499)."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestContext:
    """What is known of a request before its body is read, and how the request ended."""

    __slots__ = ("code", "endpoint", "id", "slo", "status", "tenant")

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.tenant: Tenant | None = None
        self.slo = Slo()
        self.endpoint = "none"
        """Path of the endpoint; the `endpoint` label of request metrics."""
        self.status = CLIENT_CLOSED_REQUEST
        self.code = ""
        """Error code, empty unless the request failed."""

    @property
    def tenant_name(self) -> str:
        """Name of the tenant, empty without one."""
        return self.tenant.name if self.tenant else ""

    def enter_endpoint(self, endpoint: Endpoint, slo_header: str) -> None:
        """Set the endpoint and the SLO. Raises ApiError if the SLO header is invalid."""
        self.endpoint = endpoint.path
        slo = self.tenant.slo if self.tenant else Slo()
        self.slo = apply_slo_header(as_best_effort(slo) if endpoint.best_effort else slo, slo_header)

    def record_error(self, error: ApiError) -> None:
        """Record that the request fails. Overrides a status that was already sent."""
        self.status, self.code = error.status, error.code


def request_id_from(header: str) -> str:
    """The request id from the X-Request-Id header, or a new one if the header is empty or malformed."""
    return header if _REQUEST_ID.fullmatch(header) else uuid.uuid4().hex
