"""GetAgent. Returns one agent of the token's tenant."""

from spawnmesh.session.v1.tenant_service_pb2 import GetAgentRequest, GetAgentResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import require_agent
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_agent
from spawnmesh_session.store import agents


async def get_agent(request: GetAgentRequest, caller: Caller, deps: Dependencies) -> GetAgentResponse:
    """Return the agent. Raise UNKNOWN_AGENT if there is none."""
    async with deps.database.transaction(caller.tenant_id) as connection:
        agent = await agents.get_agent(connection, caller.tenant_id, request.agent_id)
    return GetAgentResponse(agent=render_agent(require_agent(request.agent_id, agent)))
