"""TenantHookService over gRPC."""

from dataclasses import dataclass
from typing import Any

from grpc import aio
from spawnmesh.hook.v1 import tenant_hook_service_pb2 as pb
from spawnmesh.hook.v1.tenant_hook_service_pb2_grpc import TenantHookServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_hook.tenants import Tenants

Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class TenantHookServicer(TenantHookServiceServicer):
    """One method for each RPC; the tenant is always the caller's."""

    tenants: Tenants

    async def PrepareTenant(self, request: pb.PrepareTenantRequest, context: Context) -> pb.PrepareTenantResponse:
        version = await self.tenants.prepare(
            current_caller().tenant_id, request.settings_version, mask_secrets=request.settings.mask_secrets
        )
        return pb.PrepareTenantResponse(settings_version=version)

    async def PurgeTenant(self, request: pb.PurgeTenantRequest, context: Context) -> pb.PurgeTenantResponse:
        purged = await self.tenants.purge(current_caller().tenant_id, request.settings_version)
        return pb.PurgeTenantResponse(
            done=purged.is_done, deleted_plugin_count=purged.plugin_count, deleted_row_count=purged.row_count
        )
