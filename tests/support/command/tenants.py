"""Tenants and revocations of tokens of a session service in the test's own process."""

from dataclasses import dataclass, field
from typing import Any

from google.longrunning.operations_pb2 import Operation
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceServicer
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_rpc
from spawnmesh.session.v1 import token_service_pb2 as token_rpc
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceServicer
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceServicer
from spawnmesh.tenancy.v1.tenant_status_pb2 import PARTICIPATION_STATE_PURGING, StoredItems, TenantStatus
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_runtime.caller import current_caller


@dataclass
class FakeTenants(TenantServiceServicer, OperationServiceServicer):
    """Keep tenants in memory, each with one agent.

    A deletion is done when it was read `deletion_looks` times. No page of a list has more than
    `page_limit` items. `refusal` answers creations and the lists of agents.
    """

    deletion_looks: int = 0
    page_limit: int = 2
    refusal: MeshError | None = None
    updates: list[tenant_rpc.UpdateTenantRequest] = field(default_factory=list)
    stale: tuple[str, ...] = ()
    deleting: dict[str, int] = field(default_factory=dict)
    created: list[tenant_pb2.Tenant] = field(default_factory=list)
    agents: list[tenant_pb2.AgentProfile] = field(
        default_factory=lambda: [tenant_pb2.AgentProfile(agent_id="default")]
    )

    async def CreateTenant(self, request: Any, context: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        tenant = tenant_pb2.Tenant(
            tenant_id=request.tenant_id, display_name=request.display_name, settings_version=1
        )
        self.created.append(tenant)
        return tenant_rpc.CreateTenantResponse(tenant=tenant)

    async def UpdateTenant(self, request: Any, context: Any) -> Any:
        self.updates.append(request)
        tenant = tenant_pb2.Tenant(settings_version=2)
        tenant.MergeFrom(request.tenant)
        return tenant_rpc.UpdateTenantResponse(tenant=tenant, stale_services=self.stale)

    async def GetTenant(self, request: Any, context: Any) -> Any:
        if request.tenant_id not in self.deleting:
            raise not_found("tenant", request.tenant_id)
        self.deleting[request.tenant_id] += 1
        return tenant_rpc.GetTenantResponse(tenant=self._deleted(request.tenant_id))

    async def GetTenantStatus(self, request: Any, context: Any) -> Any:
        own = TenantStatus(
            state=PARTICIPATION_STATE_PURGING,
            settings_version=3,
            stored_items=[StoredItems(kind="runs", count=500, has_more=True)],
        )
        own.purge_begin_time.FromSeconds(1)
        return tenant_rpc.GetTenantStatusResponse(
            services=[
                tenant_rpc.ServiceTenantStatus(service="session", status=own),
                tenant_rpc.ServiceTenantStatus(
                    service="hook", error_reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE
                ),
            ]
        )

    async def DeleteTenant(self, request: Any, context: Any) -> Any:
        self.deleting.setdefault(request.tenant_id, 0)
        return self._operation(request)

    async def WaitOperation(self, request: Any, context: Any) -> Any:
        tenant_id = request.name.split("/")[3]
        self.deleting[tenant_id] += 1
        return self._operation(tenant_rpc.DeleteTenantRequest(tenant_id=tenant_id))

    def _operation(self, request: tenant_rpc.DeleteTenantRequest) -> Operation:
        tenant = self._deleted(request.tenant_id)
        response = tenant_rpc.DeleteTenantResponse(tenant=tenant)
        operation = Operation(
            name=f"services/session/tenants/{request.tenant_id}/operations/opr_{'0' * 26}",
            done=tenant.state == tenant_pb2.TENANT_STATE_DELETED,
        )
        metadata = OperationMetadata(method="DeleteTenant", done_count=7)
        metadata.request.Pack(request)
        metadata.partial_response.Pack(response)
        operation.metadata.Pack(metadata)
        if operation.done:
            operation.response.Pack(response)
        return operation

    def _deleted(self, tenant_id: str) -> tenant_pb2.Tenant:
        done = self.deleting[tenant_id] >= self.deletion_looks
        state = tenant_pb2.TENANT_STATE_DELETED if done else tenant_pb2.TENANT_STATE_DELETING
        deletion = tenant_pb2.TenantDeletion(
            deleted_session_count=7, stalled_by="" if done else "attachment-blob: DEPENDENCY_UNAVAILABLE"
        )
        deletion.request_time.GetCurrentTime()
        return tenant_pb2.Tenant(tenant_id=tenant_id, state=state, deletion=deletion)

    async def ListTenants(self, request: Any, context: Any) -> Any:
        page, more = self._page(self.created, request)
        return tenant_rpc.ListTenantsResponse(tenants=page, next_page_token=more)

    async def ListAgents(self, request: Any, context: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        page, more = self._page(self.agents, request)
        return tenant_rpc.ListAgentsResponse(agents=page, next_page_token=more)

    def _page(self, everything: list[Any], request: Any) -> tuple[list[Any], str]:
        start = int(request.page_token or 0)
        end = start + min(request.page_size or 50, self.page_limit)
        return everything[start:end], str(end) if end < len(everything) else ""


@dataclass
class FakeTokens(TokenServiceServicer):
    """Record revocations with the kind of their caller."""

    revoked: list[tuple[str, token_rpc.RevokeTokenRequest]] = field(default_factory=list)

    async def RevokeToken(self, request: Any, context: Any) -> Any:
        self.revoked.append((current_caller().kind.value, request))
        return token_rpc.RevokeTokenResponse(expire_time=request.expire_time)
