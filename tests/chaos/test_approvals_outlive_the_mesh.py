"""Every process of a mesh is killed while a person has to decide: approval and run remain."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as service_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.mesh.new_tenant import new_tenant
from tests.support.patient_callers import patient_callers
from tests.support.waiting import eventually

CAREFUL = AgentProfile(
    agent_id="careful",
    system_prompt=f"You are the {CALLER}.",
    tools=["write_file"],
    approval=pb.ApprovalPolicy(tools=["write_file"]),
)
TASK = 'write_file {"path": "asked.txt", "content": "as the model asks"}'
EDITED = {"path": "edited.txt", "content": "as a person says"}
BOUND_SECONDS = 120.0
"""The time from the decision, or from the start of the mesh, to the answer of the run."""


def quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture
async def stack(fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start a mesh for this test alone, where the account of PostgreSQL can read."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-approvals-") as folder, patient_callers():
        async with open_stack(Path(folder) / "data", quiet, execute=fork_server.execute) as mesh:
            yield mesh


@asynccontextmanager
async def open_client(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    async with connect_wire(
        session=stack.targets["session"],
        transcript=stack.targets["transcript"],
        token=stack.client_token(tenant),
    ) as mesh:
        yield mesh


async def kill_everything(stack: Stack) -> None:
    """Kill every process of the mesh by SIGKILL, also PostgreSQL and S3, and start all again."""
    killed = set(stack.pids.values())
    for process in (*stack.processes.values(), stack.postgres.process, *stack.s3.processes):
        await process.kill()
    await asyncio.gather(*(stack.restart_storage(part) for part in (stack.postgres, stack.s3)))
    await asyncio.gather(*(stack.restart(name) for name in stack.processes))
    await stack.until_connected()
    assert not killed & set(stack.pids.values())


async def waiting(mesh: WireMesh) -> session_pb2.Run:
    """Return the run of a new session, once it waits for a person."""
    session = await mesh.spawn(TASK, agent_id=CAREFUL.agent_id)

    async def waits() -> bool:
        run = (await mesh.session(session.session_id)).latest_run
        return run.state == session_pb2.RUN_STATE_WAITING_APPROVAL

    await eventually(waits, within_seconds=BOUND_SECONDS)
    return (await mesh.session(session.session_id)).latest_run


async def get(mesh: WireMesh, approval_id: str) -> pb.Approval:
    peer = mesh.service("session")
    request = service_pb.GetApprovalRequest(approval_id=approval_id)
    approval: pb.Approval = (
        await peer.unary(ApprovalServiceStub(peer.channel).GetApproval, request)
    ).approval
    return approval


async def approve_edited(mesh: WireMesh, approval_id: str) -> None:
    peer = mesh.service("session")
    approve = service_pb.Approve(arguments_json=json.dumps(EDITED))
    request = service_pb.DecideApprovalRequest(approval_id=approval_id, approve=approve)
    await peer.unary(ApprovalServiceStub(peer.channel).DecideApproval, request)


async def until_succeeded(mesh: WireMesh, session_id: str) -> session_pb2.Run:
    async def ended() -> bool:
        return (await mesh.wait(session_id, 5)).done

    await eventually(ended, within_seconds=BOUND_SECONDS)
    run = (await mesh.session(session_id)).latest_run
    assert run.state == session_pb2.RUN_STATE_SUCCEEDED, run
    return run


async def results(mesh: WireMesh, session_id: str) -> list[Any]:
    """Return the results of tool calls in the transcript."""
    entries = [entry async for entry in mesh.transcript(session_id)]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    said = [entry.body.message for entry in entries if entry.body.message.role == ROLE_TOOL_RESULT]
    return [json.loads("".join(block.text.text for block in message.content)) for message in said]


@pytest.mark.timeout(600)
async def test_approved_call_is_made_once_as_edited_after_every_process_was_killed(stack: Stack) -> None:
    """One run waits for a decision during the kill, and the decision on the other one is taken."""
    tenant = await new_tenant(stack)
    async with open_client(stack, tenant) as mesh:
        await mesh.put_agent(CAREFUL)
        undecided, decided = await waiting(mesh), await waiting(mesh)
        asked = await get(mesh, undecided.approval_id)
        await stack.processes["runner"].kill()
        await approve_edited(mesh, decided.approval_id)
    await kill_everything(stack)
    async with open_client(stack, tenant) as mesh:
        assert await get(mesh, undecided.approval_id) == asked
        assert (await mesh.session(undecided.session_id)).latest_run == undecided
        await approve_edited(mesh, undecided.approval_id)
        for run in (undecided, decided):
            ended = await until_succeeded(mesh, run.session_id)
            assert ended.run_id == run.run_id
            (written,) = await results(mesh, run.session_id)
            assert written["path"] == EDITED["path"]
            assert written["sha256"] == sha256(EDITED["content"].encode()).hexdigest()
            approval = await get(mesh, run.approval_id)
            assert approval.state == pb.APPROVAL_STATE_APPROVED
            assert approval.HasField("begin_time")
            assert json.loads(approval.edited_arguments_json) == EDITED
