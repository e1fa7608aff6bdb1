"""The audit logs of the services."""

from collections.abc import AsyncIterator, Sequence

from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.audit.v1.audit_service_pb2_grpc import AuditServiceStub

from spawnmesh_client.pages import pages_of
from spawnmesh_client.token_peer import TokenPeer

_PAGE_SIZE = 500


async def list_audit_events(
    peer: TokenPeer, request: pb.ListAuditEventsRequest, *, limit: int
) -> Sequence[event_pb.AuditEvent]:
    """Return the first events of one service that the request selects, by time."""
    stub = AuditServiceStub(peer.channel)
    wanted = pb.ListAuditEventsRequest()
    wanted.CopyFrom(request)
    events: list[event_pb.AuditEvent] = []
    while len(events) < limit:
        wanted.page_size = min(_PAGE_SIZE, limit - len(events))
        page = await peer.unary(stub.ListAuditEvents, wanted)
        events += page.events
        if not page.next_page_token:
            break
        wanted.page_token = page.next_page_token
    return events


async def verify_audit_events(
    peer: TokenPeer, *, tenant_id: str = ""
) -> AsyncIterator[pb.VerifyAuditEventsResponse]:
    """Yield the pages of a verification of one service."""
    stub = AuditServiceStub(peer.channel)
    request = pb.VerifyAuditEventsRequest(tenant_id=tenant_id)
    async for page in pages_of(peer, stub.VerifyAuditEvents, request):
        yield page
