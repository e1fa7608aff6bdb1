"""The limit of spawns in a session's life, and thinking levels."""

import asyncio

import pytest
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.session.harness import Mesh, attachment

LOW, HIGH = thinking_pb2.THINKING_LEVEL_LOW, thinking_pb2.THINKING_LEVEL_HIGH


async def limited(mesh: Mesh, count: int) -> Mesh:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_spawn_count=count, max_live_child_count=50))
    return own


async def spawn_reason(mesh: Mesh, parent: str, **fields: object) -> Reason | None:
    try:
        await mesh.spawn(parent_session_id=parent, **fields)
    except MeshError as error:
        return error.reason
    return None


async def test_SpawnSession__children_that_ended_failed_or_were_deleted_count(mesh: Mesh) -> None:
    mesh = await limited(mesh, 4)
    parent = (await mesh.spawn()).session_id
    ended = await mesh.spawn(parent_session_id=parent)
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=ended.session_id))
    deleted = await mesh.spawn(parent_session_id=parent)
    await mesh.client(mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=deleted.session_id))
    refused = await spawn_reason(mesh, parent, attachments=[attachment("a/b")])
    assert refused is Reason.ATTACHMENTS_INVALID_NAME
    assert (
        await spawn_reason(mesh, parent, agent_id="nobody") is Reason.UNKNOWN_AGENT
    )  # Not begun: not counted.
    child = await mesh.spawn(parent_session_id=parent, request_id="last")
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(parent_session_id=parent)
    assert (caught.value.reason, caught.value.status) == (
        Reason.SPAWN_COUNT_EXCEEDED,
        Status.FAILED_PRECONDITION,
    )
    assert caught.value.facts == {"limit": "4", "spawned": "4"}
    again = await mesh.spawn(parent_session_id=parent, request_id="last")
    assert again.session_id == child.session_id
    # The limit is each session's own.
    grandchild = await mesh.spawn(parent_session_id=child.session_id)
    assert grandchild.depth == 2
    assert (await mesh.spawn()).state == session_pb2.SESSION_STATE_ACTIVE


async def test_SpawnSession__count_holds_for_a_run_and_for_calls_at_once(mesh: Mesh) -> None:
    mesh = await limited(mesh, 3)
    held = await mesh.claim((await mesh.spawn()).session_id)
    answers = await asyncio.gather(*(mesh.spawn_as(held) for _ in range(8)), return_exceptions=True)
    reasons = [answer.reason for answer in answers if isinstance(answer, MeshError)]
    assert reasons == [Reason.SPAWN_COUNT_EXCEEDED] * 5


async def test_SpawnSession__thinking_overrides_the_agents(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="thinker", thinking=LOW))
    plain = await mesh.spawn(agent_id="thinker")
    deep = await mesh.spawn(agent_id="thinker", thinking=HIGH, request_id="deep")
    assert (plain.thinking, deep.thinking) == (thinking_pb2.THINKING_LEVEL_UNSPECIFIED, HIGH)
    assert (await mesh.get(deep.session_id)).thinking == HIGH
    claimed = {one.session_id: await mesh.claim(one.session_id) for one in (plain, deep)}
    assert (claimed[plain.session_id].thinking, claimed[deep.session_id].thinking) == (LOW, HIGH)
    assert claimed[deep.session_id].agent.thinking == LOW
    unsaid = await mesh.claim((await mesh.spawn()).session_id)
    assert unsaid.thinking == thinking_pb2.THINKING_LEVEL_UNSPECIFIED


async def test_SpawnSession__thinking_is_part_of_what_was_asked(mesh: Mesh) -> None:
    await mesh.spawn(request_id="r", thinking=LOW)
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(request_id="r", thinking=HIGH)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(thinking=99)
    assert caught.value.reason is Reason.INVALID_REQUEST
