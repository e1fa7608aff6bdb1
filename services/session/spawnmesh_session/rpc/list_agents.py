"""ListAgents.

Returns the agents of the token's tenant by id, page by page; none if the tenant does not exist.
"""

from spawnmesh.session.v1.tenant_service_pb2 import ListAgentsRequest, ListAgentsResponse
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_page, render_agent, render_next_page
from spawnmesh_session.store import agents


async def list_agents(request: ListAgentsRequest, caller: Caller, deps: Dependencies) -> ListAgentsResponse:
    """Return a page of the tenant's agents, by id."""
    page = parse_page(request, caller)
    async with deps.database.transaction(caller.tenant_id) as connection:
        listed = await agents.list_agents(
            connection, caller.tenant_id, after_id=page.last_id, page_size=page.size
        )
    return ListAgentsResponse(
        agents=map(render_agent, listed.agents),
        next_page_token=render_next_page(listed.next_after_id, request, caller),
    )
