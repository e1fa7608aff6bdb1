"""Read the audit log of a service, as an operator of a tenant or of the mesh."""

from collections.abc import Callable, Sequence
from typing import Any

from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh
from tests.support.waiting import eventually

Events = Sequence[event_pb.AuditEvent]


def admin_of(mesh: Mesh) -> str:
    """Return the token of an operator of the mesh."""
    return client_tokens(mesh.keys).admin_token("auditor", 600)


def operator_of(mesh: Mesh) -> str:
    """Return the token of an operator of the tenant."""
    return client_tokens(mesh.keys).client_token(mesh.tenant, "auditor", 600)


async def events_of(peer: Peer, token: str, **asked: Any) -> Events:
    """Return the events of all pages."""
    request = pb.ListAuditEventsRequest(**asked)
    events: list[event_pb.AuditEvent] = []
    stub = AuditServiceStub(peer.channel)
    with use_token(token):
        while True:
            page = await peer.unary(stub.ListAuditEvents, request, timeout_seconds=60.0)
            events += page.events
            if not page.next_page_token:
                return events
            request.page_token = page.next_page_token


async def verified(
    peer: Peer, token: str, tenant_id: str = ""
) -> tuple[int, Sequence[event_pb.AuditChainBreak], Sequence[event_pb.AuditChainHead]]:
    """Return the number of verified events, the breaks and the heads."""
    request = pb.VerifyAuditEventsRequest(tenant_id=tenant_id)
    stub = AuditServiceStub(peer.channel)
    count, breaks, heads = 0, list[event_pb.AuditChainBreak](), list[event_pb.AuditChainHead]()
    with use_token(token):
        while True:
            page = await peer.unary(stub.VerifyAuditEvents, request, timeout_seconds=60.0)
            count += page.event_count
            breaks += page.breaks
            heads += page.heads
            if not page.next_page_token:
                return count, breaks, heads
            request.page_token = page.next_page_token


async def recorded(
    peer: Peer, token: str, rpc: str, *, matching: Callable[[event_pb.AuditEvent], bool] = bool, **asked: Any
) -> event_pb.AuditEvent:
    """Wait for the first event of this RPC that matches, and return it."""

    async def found() -> Events:
        return [event for event in await events_of(peer, token, method=rpc, **asked) if matching(event)]

    return (await eventually(found))[0]


async def refusal_of(mesh: Mesh, call: Any, request: Any, token: str) -> Reason:
    """Call with the token, and return the reason of the refusal."""
    try:
        with use_token(token):
            await mesh.peer.unary(call, request, timeout_seconds=60.0)
    except MeshError as error:
        return error.reason
    raise AssertionError("the call was answered")
