"""Reads of one session, one tenant and one agent, and the acknowledgement of messages."""

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.session.calls import another, content_of
from tests.support.session.harness import Mesh


async def test_GetSession__what_was_spawned_and_what_no_tenant_has(mesh: Mesh) -> None:
    spawned = await mesh.spawn(task="count to three", label="counter")
    assert await mesh.get(spawned.session_id) == spawned
    with pytest.raises(MeshError) as caught:
        await mesh.get(absent := new_id(IdKind.SESSION))
    assert (caught.value.reason, caught.value.facts["id"]) == (Reason.NOT_FOUND, absent)


async def test_GetTenant__its_settings_and_an_unknown_tenant(mesh: Mesh) -> None:
    other = another(mesh)
    with pytest.raises(MeshError) as caught:
        await other.tenant_state()
    assert caught.value.reason is Reason.NOT_FOUND
    await other.create_tenant(settings=TenantSettings(max_running_run_count=3))
    tenant = await other.tenant_state()
    assert (tenant.tenant_id, tenant.settings.max_running_run_count) == (other.tenant, 3)


async def test_GetAgent__the_newest_profile(mesh: Mesh) -> None:
    async def get() -> AgentProfile:
        request = tenant_pb.GetAgentRequest(agent_id="clerk")
        stub = TenantServiceStub(mesh.peer.channel)
        agent: AgentProfile = (await mesh.client(stub.GetAgent, request)).agent
        return agent

    with pytest.raises(MeshError) as caught:
        await get()
    assert caught.value.reason is Reason.UNKNOWN_AGENT
    for prompt in ("You file.", "You read."):
        profile = AgentProfile(agent_id="clerk", system_prompt=prompt)
        await mesh.put_agent(profile)
        assert content_of(await get()) == profile


async def test_AcknowledgeInbox__only_the_named_messages_and_any_number_of_times(mesh: Mesh) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    for number in range(3):
        request = pb.SendMessageRequest(
            session_id=session.session_id, request_id=f"m{number}", text=f"text {number}"
        )
        await mesh.client(mesh.sessions.SendMessage, request)

    async def texts() -> dict[str, str]:
        listed = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
        return {message.key: message.text for message in listed.messages}

    first, second, third = await texts()
    for keys in ([first, third], [first], ["no such message"]):
        acknowledge = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
        await mesh.run(held, mesh.runs.AcknowledgeInbox, acknowledge)
        assert await texts() == {second: "text 1"}
    with pytest.raises(MeshError) as caught:
        await mesh.run(
            held,
            mesh.runs.AcknowledgeInbox,
            run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch + 1, keys=[second]),
        )
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
    assert await texts() == {second: "text 1"}
