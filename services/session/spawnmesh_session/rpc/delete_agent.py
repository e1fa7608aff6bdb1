"""DeleteAgent. Deletes an agent of the token's tenant."""

from spawnmesh.session.v1.tenant_service_pb2 import DeleteAgentRequest, DeleteAgentResponse
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import DEFAULT_AGENT_ID, check_etag
from spawnmesh_session.domain.tenants import require_ready
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import agents, tenants


async def delete_agent(
    request: DeleteAgentRequest, caller: Caller, deps: Dependencies
) -> DeleteAgentResponse:
    """Delete the agent if it exists.

    Raise INVALID_REQUEST for the agent that every tenant has, and ETAG_DIFFERS.
    """
    tenant_id, agent_id = caller.tenant_id, request.agent_id
    if agent_id == DEFAULT_AGENT_ID:
        raise invalid(
            "agent_id", f"{DEFAULT_AGENT_ID!r} stays, as every tenant has it; UpdateAgent changes it"
        )
    async with deps.database.pipelined(tenant_id) as connection:
        require_ready(tenant_id, await tenants.enter_tenant(connection, tenant_id))
        if request.etag:
            await tenants.lock_tenant(connection, tenant_id)  # No call changes the agent meanwhile.
            current = await agents.get_agent(connection, tenant_id, agent_id)
            if current is not None:
                check_etag("etag", request.etag, current)
        await agents.delete_agent(connection, tenant_id, agent_id)
    return DeleteAgentResponse()
