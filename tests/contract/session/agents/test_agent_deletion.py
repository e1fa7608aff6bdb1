"""Agents are deleted: nothing begins as one any more, and what waits to begin ends and says why."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_session.operations.run_claiming import RunClaimer
from spawnmesh_session.store import agents

from tests.support.session.calls import another, content_of, fill_agents
from tests.support.session.harness import Mesh

CLERK = AgentProfile(agent_id="clerk", system_prompt="You file.", spawnable_agents=["*"])


async def delete(mesh: Mesh, agent_id: str = "clerk") -> None:
    request = tenant_pb.DeleteAgentRequest(agent_id=agent_id)
    await mesh.client(TenantServiceStub(mesh.peer.channel).DeleteAgent, request)


async def found(mesh: Mesh, agent_id: str = "clerk") -> AgentProfile:
    request = tenant_pb.GetAgentRequest(agent_id=agent_id)
    agent: AgentProfile = (await mesh.client(TenantServiceStub(mesh.peer.channel).GetAgent, request)).agent
    return agent


async def refused(call: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value


async def claimed_none(mesh: Mesh) -> None:
    assert [one.session.session_id for one in await mesh.claim_any(wait_seconds=0.0, limit=64)] == []


async def test_DeleteAgent__is_gone_for_its_tenant_alone_and_once_more_answers_the_same(mesh: Mesh) -> None:
    other = another(mesh)
    await other.create_tenant()
    for tenant in (mesh, other):
        await tenant.put_agent(CLERK)
    assert content_of(await found(mesh)) == CLERK
    await delete(mesh)
    await delete(mesh)
    for call in (found(mesh), mesh.spawn(agent_id="clerk")):
        error = await refused(call)
        assert (error.reason, error.facts) == (Reason.UNKNOWN_AGENT, {"agent_id": "clerk"})
    assert content_of(await found(other)) == CLERK


async def test_DeleteAgent__another_agent_may_be_put_after_it(mesh: Mesh, session_database: Database) -> None:
    ids = await fill_agents(session_database, mesh.tenant, 999)
    assert (await refused(mesh.put_agent(CLERK))).reason is Reason.AGENT_COUNT_EXCEEDED
    await delete(mesh, ids[500])
    await mesh.put_agent(CLERK)
    assert (
        await refused(mesh.put_agent(AgentProfile(agent_id="late")))
    ).reason is Reason.AGENT_COUNT_EXCEEDED


async def test_DeleteAgent__the_agent_that_every_tenant_has_stays(mesh: Mesh) -> None:
    error = await refused(delete(mesh, "default"))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_REQUEST, "agent_id")
    await mesh.spawn()


async def test_DeleteAgent__tenant_that_is_not_there(mesh: Mesh) -> None:
    stranger = another(mesh)
    assert (await refused(delete(stranger))).reason is Reason.UNKNOWN_TENANT
    assert (await refused(found(stranger))).reason is Reason.UNKNOWN_AGENT


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__a_waiting_run_of_a_deleted_agent_ends_when_it_is_claimed_and_its_parent_hears_why(
    mesh: Mesh,
) -> None:
    await mesh.put_agent(CLERK)
    held = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(held, agent_id="clerk")
    await delete(mesh)
    await claimed_none(mesh)
    ended = await mesh.get(child.session_id)
    run = ended.latest_run
    assert (run.state, run.error_reason) == (session_pb2.RUN_STATE_FAILED, reason_pb2.REASON_UNKNOWN_AGENT)
    assert "'clerk'" in run.error_message
    assert (run.attempt_count, ended.state) == (0, session_pb2.SESSION_STATE_CLOSED)
    inbox = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    assert ["UNKNOWN_AGENT" in message.text for message in inbox.messages] == [True]


async def test_a_run_that_is_held_goes_on_without_its_agent_but_spawns_no_more(mesh: Mesh) -> None:
    await mesh.put_agent(CLERK)
    session = await mesh.spawn(agent_id="clerk", mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    await delete(mesh)
    await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
    assert (await refused(mesh.spawn_as(held, agent_id="default"))).reason is Reason.UNKNOWN_AGENT
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    await mesh.put_agent(CLERK)
    again = await mesh.claim(session.session_id)
    assert (again.run.run_id, content_of(again.agent)) == (held.run.run_id, CLERK)


@pytest.mark.usefixtures("empty_queue")
async def test_SendMessage__an_open_session_takes_messages_again_once_its_agent_is_written_again(
    mesh: Mesh,
) -> None:
    await mesh.put_agent(CLERK)
    session = await mesh.spawn(agent_id="clerk", mode=session_pb2.SESSION_MODE_SESSION)
    await delete(mesh)
    await claimed_none(mesh)
    assert (await mesh.get(session.session_id)).state == session_pb2.SESSION_STATE_ACTIVE
    await mesh.put_agent(CLERK)
    send = pb.SendMessageRequest(session_id=session.session_id, request_id="again", text="once more")
    await mesh.client(mesh.sessions.SendMessage, send)
    assert content_of((await mesh.claim(session.session_id)).agent) == CLERK


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__run_whose_agent_is_written_again_before_its_end_is_claimed_again(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mesh.put_agent(CLERK)
    session = await mesh.spawn(agent_id="clerk")
    await delete(mesh)
    end = RunClaimer._end_without_agent

    async def written_meanwhile(*which: Any) -> None:
        await mesh.put_agent(CLERK)
        await end(*which)

    monkeypatch.setattr(RunClaimer, "_end_without_agent", written_meanwhile)
    held = await mesh.claim(session.session_id)
    assert (content_of(held.agent), held.run.attempt_count) == (CLERK, 1)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__a_run_whose_end_fails_is_ended_by_a_later_claim(
    open_mesh: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mesh(lease_ttl_seconds=0.5) as mesh:
        await mesh.create_tenant()
        await mesh.put_agent(CLERK)
        session = await mesh.spawn(agent_id="clerk")
        await delete(mesh)
        get = agents.get_agent

        async def fails_once(*asked: Any) -> Any:
            monkeypatch.setattr(agents, "get_agent", get)
            raise psycopg.OperationalError("the connection is lost")

        monkeypatch.setattr(agents, "get_agent", fails_once)
        await claimed_none(mesh)
        assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_QUEUED
        await asyncio.sleep(0.6)
        await claimed_none(mesh)
        assert (await mesh.get(session.session_id)).latest_run.error_reason == reason_pb2.REASON_UNKNOWN_AGENT


@pytest.mark.usefixtures("empty_queue")
async def test_agents_deleted_and_written_while_runs_are_claimed_leave_every_run_ended_or_held_once(
    mesh: Mesh,
) -> None:
    await mesh.put_agent(CLERK)
    spawned = [(await mesh.spawn(agent_id="clerk")).session_id for _ in range(12)]

    async def flicker() -> None:
        while True:
            await delete(mesh)
            await mesh.put_agent(CLERK)

    flickering = asyncio.create_task(flicker())
    held: list[str] = []
    for _ in range(12):
        claims = await asyncio.gather(*(mesh.claim_any(wait_seconds=0.1, limit=2) for _ in range(3)))
        held += [one.session.session_id for claim in claims for one in claim]
    flickering.cancel()
    with suppress(asyncio.CancelledError):
        await flickering
    assert len(held) == len(set(held))
    ended = [
        one
        for one in spawned
        if (await mesh.get(one)).latest_run.error_reason == reason_pb2.REASON_UNKNOWN_AGENT
    ]
    assert sorted(held + ended) == sorted(spawned)


async def test_agents_are_for_clients_alone(mesh: Mesh) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.operator("DeleteAgent", tenant_pb.DeleteAgentRequest(agent_id="clerk"))
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED


async def test_SpawnSession__a_repeat_answers_the_same_after_its_agent_was_deleted(mesh: Mesh) -> None:
    await mesh.put_agent(CLERK)
    first = await mesh.spawn(request_id="one", agent_id="clerk")
    await delete(mesh)
    assert (await mesh.spawn(request_id="one", agent_id="clerk")).session_id == first.session_id
    assert (
        await refused(mesh.spawn(request_id="one", agent_id="default"))
    ).reason is Reason.REQUEST_ID_REUSED
    assert (await refused(mesh.spawn(request_id="two", agent_id="clerk"))).reason is Reason.UNKNOWN_AGENT


async def test_SpawnSession__a_runs_repeat_answers_the_same_after_its_own_agent_was_deleted(
    mesh: Mesh,
) -> None:
    await mesh.put_agent(CLERK)
    held = await mesh.claim((await mesh.spawn(agent_id="clerk")).session_id)
    first = await mesh.spawn_as(held, request_id="call:1:0", agent_id="default")
    await delete(mesh)
    again = await mesh.spawn_as(held, request_id="call:1:0", agent_id="default")
    assert again.session_id == first.session_id
