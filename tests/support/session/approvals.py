"""Approvals: a runner that asks for them, and people who decide."""

from typing import Any
from uuid import uuid4

from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as service_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh
from tests.support.session.tables import superuser, sweeping

WAITING = session_pb2.RUN_STATE_WAITING_APPROVAL
QUEUED = session_pb2.RUN_STATE_QUEUED
SCHEMA = '{"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},'
SCHEMA += ' "required": ["to"], "additionalProperties": false}'


def call_key(index: int = 0) -> pb.CallKey:
    return pb.CallKey(answer_entry_id=new_id(IdKind.ENTRY), index=index)


def transfer(arguments: str = '{"to": "Ada", "amount": 5}') -> pb.ToolCallSubject:
    return pb.ToolCallSubject(tool_name="mcp__bank__pay", arguments_json=arguments, parameters_json=SCHEMA)


async def ask(
    mesh: Mesh, held: run_pb.ClaimedRun, key: pb.CallKey, **fields: Any
) -> pb.RequestApprovalResponse:
    """Ask for an approval of the call, of a transfer unless `fields` say otherwise."""
    if "question" not in fields:
        fields.setdefault("tool_call", transfer())
    request = pb.RequestApprovalRequest(epoch=held.run.epoch, call=key, **fields)
    answer: pb.RequestApprovalResponse = await mesh.run(held, mesh.runs.RequestApproval, request)
    return answer


async def take(mesh: Mesh, held: run_pb.ClaimedRun, key: pb.CallKey) -> pb.TakeDecisionResponse:
    request = pb.TakeDecisionRequest(epoch=held.run.epoch, call=key)
    answer: pb.TakeDecisionResponse = await mesh.run(held, mesh.runs.TakeDecision, request)
    return answer


async def decide(
    mesh: Mesh, approval_id: str, *, by: str = "ada", tenant: str = "", **decision: Any
) -> service_pb.DecideApprovalResponse:
    request = service_pb.DecideApprovalRequest(approval_id=approval_id, **decision)
    call = ApprovalServiceStub(mesh.peer.channel).DecideApproval
    with use_token(client_tokens(mesh.keys).client_token(tenant or mesh.tenant, by, 600)):
        answer: service_pb.DecideApprovalResponse = await mesh.peer.unary(call, request, timeout_seconds=60.0)
    return answer


async def approve(mesh: Mesh, approval_id: str, **fields: Any) -> service_pb.DecideApprovalResponse:
    arguments = fields.pop("arguments_json", "")
    return await decide(mesh, approval_id, approve=service_pb.Approve(arguments_json=arguments), **fields)


async def deny(mesh: Mesh, approval_id: str, reason: str = "", **fields: Any) -> Any:
    return await decide(mesh, approval_id, deny=service_pb.DenyCall(reason=reason), **fields)


async def get(mesh: Mesh, approval_id: str, *, tenant: str = "") -> pb.Approval:
    request = service_pb.GetApprovalRequest(approval_id=approval_id)
    call = ApprovalServiceStub(mesh.peer.channel).GetApproval
    approval: pb.Approval = (await mesh.client(call, request, tenant=tenant)).approval
    return approval


async def listed(mesh: Mesh, *, tenant: str = "", **fields: Any) -> list[pb.Approval]:
    """Return the approvals of all pages."""
    request = service_pb.ListApprovalsRequest(**fields)
    call, found = ApprovalServiceStub(mesh.peer.channel).ListApprovals, list[pb.Approval]()
    while True:
        page = await mesh.client(call, request, tenant=tenant)
        found += page.approvals
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def waiting_run(mesh: Mesh, **fields: Any) -> tuple[run_pb.ClaimedRun, pb.CallKey, pb.Approval]:
    """Let a run of a new session wait for an approval."""
    spawned = fields.pop("spawn", {})
    session = await mesh.spawn(request_id=uuid4().hex, **spawned)
    held, key = await mesh.claim(session.session_id), call_key()
    return held, key, (await ask(mesh, held, key, **fields)).approval


async def let_expire(mesh: Mesh, postgres: Any, approval_id: str) -> None:
    """Let the time for the decision be over, and sweep."""
    await end_wait(postgres, approval_id)
    async with sweeping(mesh) as sweep:
        await sweep.end_lost_runs()


async def end_wait(postgres: Any, approval_id: str) -> None:
    """Let the time for the decision be over, as if the approval had been requested earlier."""
    async with superuser(postgres) as link:
        found = await link.execute(
            "select run_id, now(), now() - (expire_time - create_time) from session.approvals"
            " where approval_id = %s",
            (approval_id,),
        )
        row = await found.fetchone()
        assert row is not None, approval_id
        run_id, now, requested = row
        # No arithmetic with columns: Citus updates no row by it.
        await link.execute(
            "update session.approvals set create_time = %s, expire_time = %s where approval_id = %s",
            (requested, now, approval_id),
        )
        await link.execute(
            "update session.run_queue set expire_time = %s, due_time = %s where parked and run_id = %s",
            (now, now, run_id),
        )
