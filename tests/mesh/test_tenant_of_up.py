"""The tenant that `spawnmesh up` makes stays as people have changed it, also at the next start."""

from uuid import uuid4

from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.up import make_tenant


async def test_a_tenant_whose_settings_were_changed_is_found_at_the_next_start(stack: Stack) -> None:
    tenant_id = f"t-{uuid4().hex[:12]}"
    settings = TenantSettings(routing=RoutingPolicy(trace_content=True))
    await make_tenant(stack, tenant_id)
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.update_tenant(tenant_id, ["settings.routing"], settings=settings)
        await make_tenant(stack, tenant_id)
        assert (await operator.tenant(tenant_id)).settings.routing.trace_content
