"""Unexpected exceptions in the front end: logged with their reason, and converted to the error that the client gets.

The code of a model runs in the front end too: `detokenize`, tokenizers and other hooks. What such code raises is logged
like an exception of an op. Any other exception is a bug of the server, or a value of a model that no response can be
made of: it is logged by type and stack, and with its message only if the server exposes errors, because the message can
contain client data.
"""

from __future__ import annotations

import logging

from mstar.server.errors import MAX_EXPOSED_CHARS, ApiError, model_error
from mstar.server.request_context import RequestContext
from mstar.server.state import ServerState
from mstar.server.telemetry.logs import log_exception
from mstar.wire.failure import Failure, error_text

log = logging.getLogger("mstar.server")

INTERNAL_ERROR = ApiError(500, "internal_error", "internal server error; fix: report the X-Request-Id to the operator")


def report_exception(error: Exception, state: ServerState, context: RequestContext) -> ApiError:
    """Log an exception that ended a request, record it for the trace, and return the error for the client."""
    failure = Failure.from_exception(error, process="front")
    error_type, message = type(error).__name__, error_text(error)
    context.record_failure(error_type, failure)
    if failure.is_authored:
        record = state.recent_requests.find(context.tenant_name, context.id)
        log_exception(error, failure, record.model if record is not None else "", context.id)
        return model_error(error_type, message, context.id, expose=state.exposes_errors)
    exposed = {"message": message[:MAX_EXPOSED_CHARS]} if state.exposes_errors else {}
    log.error("request %s", context.id, exc_info=error, extra={"fields": exposed})
    if not exposed:
        return INTERNAL_ERROR
    text = f"internal server error: {error_type}: {exposed['message']} (request id {context.id})"
    return ApiError(500, "internal_error", text)
