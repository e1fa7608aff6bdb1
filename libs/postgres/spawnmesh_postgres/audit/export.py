"""Stored events of the audit log as OpenTelemetry log records."""

from datetime import UTC, datetime, timedelta

from opentelemetry import trace
from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext

from spawnmesh_postgres.audit.chain import ChainedEvent
from spawnmesh_postgres.audit.store import NO_TENANT

EVENT_NAME = "spawnmesh.audit"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def emit(logger: Logger, event: ChainedEvent, digest: bytes) -> None:
    """Send a stored event with its hash. Fields without a value are left out."""
    is_ok = event.code == "OK"
    attributes = {
        "rpc.system.name": "grpc",
        "rpc.method": event.method,
        "rpc.response.status_code": event.code,
        "error.type": event.reason or (not is_ok and event.code),
        "user.id": event.subject,
        "client.address": event.peer,
        "spawnmesh.tenant.id": event.tenant_id != NO_TENANT and event.tenant_id,
        "spawnmesh.caller.kind": event.caller_kind,
        "spawnmesh.token.id": event.token_id,
        "spawnmesh.audit.event_id": event.event_id,
        "spawnmesh.audit.sequence": event.sequence,
        "spawnmesh.audit.hash": digest.hex(),
        "spawnmesh.audit.call_count": event.call_count,
        "spawnmesh.audit.last_time": event.last_time.isoformat(),
        "spawnmesh.audit.resources": tuple(event.resources),
    }
    logger.emit(
        LogRecord(
            timestamp=(event.event_time - _EPOCH) // timedelta(microseconds=1) * 1000,
            context=_in_trace(event.trace_id),
            severity_number=SeverityNumber.INFO if is_ok else SeverityNumber.WARN,
            severity_text="INFO" if is_ok else "WARN",
            body=f"{event.method} {event.code}".lstrip(),
            attributes={name: value for name, value in attributes.items() if value},
            event_name=EVENT_NAME,
        )
    )


def _in_trace(trace_id: str) -> Context:
    """Return a context in the trace, without a span; an empty one without a trace."""
    if not trace_id:
        return Context()
    no_span = SpanContext(int(trace_id, 16), trace.INVALID_SPAN_ID, is_remote=True)
    return trace.set_span_in_context(NonRecordingSpan(no_span), Context())
