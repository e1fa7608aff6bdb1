"""Lists of approvals that are bounded, and an approval with arguments as a person typed them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest

from spawnmesh.session.v1 import approval_pb2
from spawnmesh.session.v1 import approval_service_pb2 as rpc
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh_client.approval_views import Approval, ApprovalState
from spawnmesh_client.approvals import approval_view
from spawnmesh_client.client import Mesh
from spawnmesh_client.pages import pages_of

_PAGE_SIZE = 500
_MAX_PAGES = 20  # The mesh lists the oldest first, so the newest ones are behind all others.


@dataclass(frozen=True, slots=True)
class WaitingIds:
    """The ids of the oldest approvals that wait. `is_all` is False if others are left out."""

    ids: list[str]
    is_all: bool


@dataclass(frozen=True, slots=True)
class FoundApprovals:
    """Approvals of a list. `is_all` is False if others are left out; `is_end` is False if the list
    was not read to its end.
    """

    approvals: list[Approval]
    is_all: bool
    is_end: bool = True


async def waiting_approvals(mesh: Mesh, session_id: str, max_count: int) -> FoundApprovals:
    """Return the oldest approvals that wait for a person."""
    found = await _waiting(mesh, session_id, max_count + 1)
    return FoundApprovals(await _views(found[:max_count]), is_all=len(found) <= max_count)


async def waiting_ids(mesh: Mesh, session_id: str, max_count: int) -> WaitingIds:
    """Return the ids of the oldest approvals that wait for a person."""
    found = await _waiting(mesh, session_id, max_count + 1)
    return WaitingIds([one.approval_id for one in found[:max_count]], is_all=len(found) <= max_count)


async def decided_approvals(mesh: Mesh, session_id: str, max_count: int) -> FoundApprovals:
    """Return the approvals that were decided last, newest first. At most 20 pages of the list are
    read.
    """
    newest: list[approval_pb2.Approval] = []
    count = page_count = 0
    is_end = False
    async for page in _pages(mesh, rpc.ListApprovalsRequest(session_id=session_id, page_size=_PAGE_SIZE)):
        decided = [one for one in page.approvals if one.state != approval_pb2.APPROVAL_STATE_PENDING]
        count += len(decided)
        newest = nlargest(max_count, [*newest, *decided], key=_decide_time)
        page_count += 1
        is_end = not page.next_page_token
        if page_count == _MAX_PAGES:
            break
    return FoundApprovals(await _views(newest), is_all=is_end and count <= max_count, is_end=is_end)


async def approve_edited(mesh: Mesh, approval_id: str, arguments_json: str) -> Approval:
    """Let the call be made with these arguments, whose numbers keep all digits.

    Refusals are those of `mesh.approvals.approve`.
    """
    peer = mesh.wire.service("session")
    request = rpc.DecideApprovalRequest(
        approval_id=approval_id, approve=rpc.Approve(arguments_json=arguments_json)
    )
    answer = await peer.unary(ApprovalServiceStub(peer.channel).DecideApproval, request)
    return approval_view(answer.approval)


def is_waiting(approval: Approval) -> bool:
    """Return whether the approval waits for a person."""
    return approval.state is ApprovalState.PENDING


async def _waiting(mesh: Mesh, session_id: str, max_count: int) -> list[approval_pb2.Approval]:
    found: list[approval_pb2.Approval] = []
    request = rpc.ListApprovalsRequest(
        state=approval_pb2.APPROVAL_STATE_PENDING, session_id=session_id, page_size=max_count
    )
    async for page in _pages(mesh, request):
        found += page.approvals
        if len(found) >= max_count:
            break
    return found[:max_count]


async def _views(approvals: list[approval_pb2.Approval]) -> list[Approval]:
    views: list[Approval] = []
    for one in approvals:
        views.append(approval_view(one))  # It parses the arguments, while all others wait.
        await asyncio.sleep(0)
    return views


def _pages(mesh: Mesh, request: rpc.ListApprovalsRequest) -> AsyncIterator[rpc.ListApprovalsResponse]:
    peer = mesh.wire.service("session")
    return pages_of(peer, ApprovalServiceStub(peer.channel).ListApprovals, request)


def _decide_time(approval: approval_pb2.Approval) -> datetime:
    return approval.decide_time.ToDatetime(UTC)
