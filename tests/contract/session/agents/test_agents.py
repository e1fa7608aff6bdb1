"""Agents' profiles: what is written is what is read, and what a runner is handed with a run."""

import pytest
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.tools.calling.registry import BUILT_IN
from spawnmesh_session.domain.agents import BUILT_IN_TOOLS

from tests.support.session.harness import Mesh


async def agents(mesh: Mesh) -> dict[str, AgentProfile]:
    stub = TenantServiceStub(mesh.peer.channel)
    listed = await mesh.client(stub.ListAgents, tenant_pb.ListAgentsRequest())
    assert not listed.next_page_token
    return {agent.agent_id: agent for agent in listed.agents}


async def test_UpdateAgent__mcp_servers_are_kept_in_their_order_and_replaced(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="clerk", mcp_servers=["weather", "git-hub_2"]))
    assert list((await agents(mesh))["clerk"].mcp_servers) == ["weather", "git-hub_2"]
    await mesh.put_agent(AgentProfile(agent_id="clerk", mcp_servers=["weather"]))
    assert list((await agents(mesh))["clerk"].mcp_servers) == ["weather"]
    assert list((await agents(mesh))["default"].mcp_servers) == []


async def test_ClaimRuns__returns_the_tenant_and_the_mcp_servers_of_the_agent(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="clerk", mcp_servers=["weather"]))
    session = await mesh.spawn(agent_id="clerk")
    claimed = await mesh.claim(session.session_id)
    assert list(claimed.agent.mcp_servers) == ["weather"]
    assert claimed.tenant_id == mesh.tenant


@pytest.mark.parametrize("name", ["", "A", "a__b", "a_", "-a", "a b", "../a", "a" * 33, "curl http://x"])
async def test_UpdateAgent__a_name_that_no_server_has(mesh: Mesh, name: str) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.put_agent(AgentProfile(agent_id="clerk", mcp_servers=["weather", name]))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.violations[0].field == "agent.mcp_servers[1]"


async def test_UpdateAgent__takes_every_tool_that_runners_have_and_no_other(mesh: Mesh) -> None:
    assert set(BUILT_IN_TOOLS) == set(BUILT_IN)
    await mesh.put_agent(AgentProfile(agent_id="clerk", tools=list(BUILT_IN)))
    assert list((await agents(mesh))["clerk"].tools) == list(BUILT_IN)
    with pytest.raises(MeshError) as caught:
        await mesh.put_agent(AgentProfile(agent_id="clerk", tools=["mcp__weather__forecast"]))
    assert caught.value.violations[0].field == "agent.tools[0]"
