"""TenantService."""

from dataclasses import dataclass

import grpc
from spawnmesh.session.v1 import tenant_service_pb2 as pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_session.operations.tenant_deletion import TenantDeletion
from spawnmesh_session.operations.tenants import Tenants
from spawnmesh_session.parse import (
    parse_agent,
    parse_agent_to_delete,
    parse_agents_page,
    parse_settings,
    parse_tenants_page,
)
from spawnmesh_session.render import render_agent, render_tenant
from spawnmesh_session.tenant_change import parse_change

Context = grpc.aio.ServicerContext[object, object]


@dataclass(frozen=True, slots=True)
class TenantServicer(TenantServiceServicer):
    """Tenants, their settings and their agents."""

    tenants: Tenants
    deletion: TenantDeletion

    async def CreateTenant(self, request: pb.CreateTenantRequest, context: Context) -> pb.CreateTenantResponse:
        row = await self.tenants.create(request.tenant_id, request.display_name, parse_settings(request.settings))
        return pb.CreateTenantResponse(tenant=render_tenant(row))

    async def UpdateTenant(self, request: pb.UpdateTenantRequest, context: Context) -> pb.UpdateTenantResponse:
        row, stale = await self.tenants.update(request.tenant_id, parse_change(request), request.settings_version)
        return pb.UpdateTenantResponse(tenant=render_tenant(row), stale_services=stale)

    async def GetTenant(self, request: pb.GetTenantRequest, context: Context) -> pb.GetTenantResponse:
        return pb.GetTenantResponse(tenant=render_tenant(await self.tenants.find(request.tenant_id)))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Context) -> pb.DeleteTenantResponse:
        return pb.DeleteTenantResponse(tenant=render_tenant(await self.deletion.begin(request.tenant_id)))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        page = parse_tenants_page(request.page_size, request.page_token)
        listed = await self.tenants.list_page(after_id=page.last_id, page_size=page.size)
        shown = [render_tenant(row) for row in listed.rows]
        return pb.ListTenantsResponse(tenants=shown, next_page_token=listed.next_after_id)

    async def PutAgent(self, request: pb.PutAgentRequest, context: Context) -> pb.PutAgentResponse:
        agent = parse_agent(request.agent)
        await self.tenants.put_agent(current_caller().tenant_id, agent)
        return pb.PutAgentResponse(agent=render_agent(agent))

    async def GetAgent(self, request: pb.GetAgentRequest, context: Context) -> pb.GetAgentResponse:
        agent = await self.tenants.get_agent(current_caller().tenant_id, request.agent_id)
        return pb.GetAgentResponse(agent=render_agent(agent))

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Context) -> pb.DeleteAgentResponse:
        await self.tenants.delete_agent(current_caller().tenant_id, parse_agent_to_delete(request.agent_id))
        return pb.DeleteAgentResponse()

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        page = parse_agents_page(request.page_size, request.page_token)
        listed = await self.tenants.list_agents(current_caller().tenant_id, after_id=page.last_id, page_size=page.size)
        shown = [render_agent(agent) for agent in listed.agents]
        return pb.ListAgentsResponse(agents=shown, next_page_token=listed.next_after_id)
