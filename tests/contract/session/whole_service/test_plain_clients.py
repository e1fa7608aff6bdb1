"""Clients with gRPC's default limit of 4 MiB receive every list."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import psycopg
import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_session.app import open_service

from tests.support.serving import client_tokens, runner_tokens, served
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains

MIB = 1024 * 1024


@pytest.fixture
async def plain(mesh: Mesh) -> AsyncIterator[grpc.aio.Channel]:
    """A channel with gRPC's own limits."""
    async with (
        served("session", mesh.settings, open_service) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        yield channel


async def heard(call: Any, request: Any, token: str) -> Any:
    return await call(request, metadata=(("authorization", f"Bearer {token}"),), timeout=60)


async def test_ListInbox__several_large_messages(mesh: Mesh, plain: grpc.aio.Channel) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    stub: Any = RunServiceStub(plain)
    for number in range(4):
        request = pb.SendMessageRequest(
            session_id=held.session.session_id, request_id=f"m{number}", text="x" * MIB
        )
        await mesh.client(mesh.sessions.SendMessage, request)
    seen: list[str] = []
    while messages := (await heard(stub.ListInbox, run_pb.ListInboxRequest(), held.run_token)).messages:
        keys = [message.key for message in messages]
        seen += keys
        taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
        await mesh.run(held, mesh.runs.AcknowledgeInbox, taken)
    assert seen == [f"message:v1:m{number}" for number in range(4)]


async def test_ListSessions__several_large_results_and_many_errors(
    mesh: Mesh, plain: grpc.aio.Channel, remains: Remains
) -> None:
    spawned = [(await mesh.spawn()).session_id for _ in range(14)]
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        large = (
            "update session.runs set result_text = repeat('x', 520000), error_message = repeat('y', 4096)"
            " where tenant_id = %s"
        )
        await superuser.execute(large, (mesh.tenant,))
        await superuser.execute("delete from session.run_queue where tenant_id = %s", (mesh.tenant,))
    stub: Any = SessionServiceStub(plain)
    token = client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)
    request, listed = pb.ListSessionsRequest(view=session_pb2.SESSION_VIEW_FULL), []
    while True:
        page = await heard(stub.ListSessions, request, token)
        listed += [session.session_id for session in page.sessions]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert listed == sorted(spawned, reverse=True)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__several_large_agents(mesh: Mesh, plain: grpc.aio.Channel) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=100))
    models = [f"{number:02}" + "m" * 254 for number in range(16)]
    await own.put_agent(AgentProfile(agent_id="wordy", system_prompt="x" * 262_144, models=models))
    wordy = {(await own.spawn(agent_id="wordy")).session_id for _ in range(17)}
    stub: Any = RunServiceStub(plain)
    claimed: list[run_pb.ClaimedRun] = []
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=64)
    token = runner_tokens(mesh.keys).runner_token()
    while answer := (await heard(stub.ClaimRuns, request, token)).runs:
        claimed += answer
    ours = [held for held in claimed if held.session.session_id in wordy]
    assert len(ours) == 17
    assert {(held.run.attempt_count, held.run.epoch) for held in ours} == {(1, 1)}
