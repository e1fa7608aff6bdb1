"""AuditService of every service."""

from collections.abc import Callable
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio
from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceServicer, add_AuditServiceServicer_to_server
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import page_token, position_of

from spawnmesh_postgres.audit import chain, store
from spawnmesh_postgres.audit.chain import MAX_BATCH, ChainBreak, ChainedEvent, Link
from spawnmesh_postgres.audit.store import NO_TENANT, ChainState, EventFilter, ListPosition
from spawnmesh_postgres.database import ALL_TENANTS, Database

_DEFAULT_PAGE_SIZE = 100
_DEFAULT_VERIFIED_EVENTS = 5_000
"""Events of one page of a verification, which are read and hashed MAX_BATCH at a time."""

_BEGIN, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

Context = aio.ServicerContext[Any, Any]


class AuditServicer(AuditServiceServicer):
    """The servicer of AuditService, on the events of one service.

    `caller_scope` returns the tenant of the call that is being served, and whether the caller is an
    operator of the mesh.
    """

    def __init__(
        self, service: str, database: Database, caller_scope: Callable[[], tuple[str, bool]]
    ) -> None:
        self._service = service
        self._database = database
        self._caller_scope = caller_scope

    async def ListAuditEvents(
        self, request: pb.ListAuditEventsRequest, context: Context
    ) -> pb.ListAuditEventsResponse:
        scope, is_operator = self._scope_of(request.tenant_id)
        outcome = event_pb.AuditOutcome.Name(request.outcome).removeprefix("AUDIT_OUTCOME_")
        wanted = EventFilter(
            end_time=_time_of(request.end_time, "end_time") if request.HasField("end_time") else _END,
            method=request.method,
            outcome="" if outcome == "UNSPECIFIED" else outcome,
            trace_id=request.trace_id,
        )
        start = _time_of(request.start_time, "start_time") if request.HasField("start_time") else _BEGIN
        after = position_of(request, (datetime, str, int), scope)
        page = await store.list_events(
            self._database,
            scope,
            wanted,
            ListPosition(*after) if after else ListPosition(start),
            with_hidden=is_operator,
            page_size=request.page_size or _DEFAULT_PAGE_SIZE,
        )
        return pb.ListAuditEventsResponse(
            events=[self._render(event, digest) for event, digest in page.events],
            next_page_token=page_token(astuple(page.end), request, scope) if page.end else "",
        )

    async def VerifyAuditEvents(
        self, request: pb.VerifyAuditEventsRequest, context: Context
    ) -> pb.VerifyAuditEventsResponse:
        scope, is_operator = self._scope_of(request.tenant_id)
        tenant_id, after = _link(request, scope)
        response = pb.VerifyAuditEventsResponse()
        left = request.page_size or _DEFAULT_VERIFIED_EVENTS
        while left > 0:
            limit = min(left, MAX_BATCH)
            read = await store.read_chain(self._database, scope, tenant_id, after=after, limit=limit)
            if read is None:
                return response
            state, start, events = read
            link, breaks = chain.verify(start, events)
            response.event_count += len(events)
            left -= max(1, len(events))
            tenant_id, after = state.tenant_id, link
            if len(events) < limit:  # The chain ends here.
                breaks += chain.verify_end(state.tenant_id, link, state.head)
                response.heads.append(_render_head(state))
                after = None
            hidden = 0 if is_operator else state.hidden_sequence
            response.breaks.extend(_render_break(one) for one in breaks if one.sequence > hidden)
        response.next_page_token = _link_token(tenant_id, after, request, scope)
        return response

    def _scope_of(self, named: str) -> tuple[str, bool]:
        """Return the scope of the caller for the tenant that it names, and whether it is an
        operator of the mesh.

        Raises INVALID_REQUEST if a client names another tenant than its own.
        """
        tenant_id, is_operator = self._caller_scope()
        if is_operator:
            return named or tenant_id or ALL_TENANTS, True
        if named not in ("", tenant_id):
            raise invalid("tenant_id", "is for operators of the mesh; a client sees its own tenant's events")
        return tenant_id, False

    def _render(self, event: ChainedEvent, digest: bytes) -> event_pb.AuditEvent:
        rendered = event_pb.AuditEvent(
            service=self._service,
            tenant_id=_shown(event.tenant_id),
            sequence=event.sequence,
            event_id=event.event_id,
            call_count=event.call_count,
            method=event.method,
            caller_kind=_render_caller(event.caller_kind),
            subject=event.subject,
            token_id=event.token_id,
            resources=event.resources,
            code=event.code,
            reason=event.reason,
            trace_id=event.trace_id,
            peer=event.peer,
            hash=digest,
        )
        rendered.event_time.FromDatetime(event.event_time)
        rendered.last_time.FromDatetime(event.last_time)
        return rendered


def add_audit(
    server: aio.Server, database: Database, service: str, caller_scope: Callable[[], tuple[str, bool]]
) -> None:
    """Add the AuditService of a service, given by kebab id, with the tables of the audit log."""
    add_AuditServiceServicer_to_server(AuditServicer(service, database, caller_scope), server)


def _shown(tenant_id: str) -> str:
    return "" if tenant_id == NO_TENANT else tenant_id


def _time_of(time: Timestamp, field: str) -> datetime:
    try:
        return time.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is not a time") from None


def _render_caller(kind: str) -> policy_pb2.Caller.ValueType:
    """Return the kind that an event has in lower case; unspecified if it is not known."""
    return policy_pb2.Caller.Value(f"CALLER_{kind.upper() or 'UNSPECIFIED'}")


def _render_head(state: ChainState) -> event_pb.AuditChainHead:
    return event_pb.AuditChainHead(
        tenant_id=_shown(state.tenant_id),
        first_sequence=state.cut_sequence + 1,
        last_sequence=state.last_sequence,
        hash=state.last_hash,
    )


def _render_break(found: ChainBreak) -> event_pb.AuditChainBreak:
    return event_pb.AuditChainBreak(
        tenant_id=_shown(found.tenant_id),
        sequence=found.sequence,
        defect=event_pb.AuditDefect.Value(f"AUDIT_DEFECT_{found.defect}"),
    )


def _link_token(tenant_id: str, link: Link | None, request: pb.VerifyAuditEventsRequest, scope: str) -> str:
    sequence, digest = (-1, b"") if link is None else (link.sequence, link.hash)
    return page_token([tenant_id, digest, sequence], request, scope)


def _link(request: pb.VerifyAuditEventsRequest, scope: str) -> tuple[str, Link | None]:
    position = position_of(request, (str, bytes, int), scope)
    if position is None:
        return "", None
    tenant_id, digest, sequence = position
    return tenant_id, None if sequence < 0 else Link(sequence, digest)
