"""The limits of a tenant's settings on agents, their MCP servers, and plugins."""

import asyncio
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh
from tests.support.session.tables import superuser
from tests.support.waiting import eventually


async def update(mesh: Mesh, settings: TenantSettings, *paths: str) -> None:
    await mesh.operator(
        "UpdateTenant",
        tenant_pb.UpdateTenantRequest(
            tenant=Tenant(tenant_id=mesh.tenant, settings=settings), update_mask=FieldMask(paths=paths)
        ),
    )


async def wait_for_locks(postgres: Postgres, count: int) -> bool:
    """Return whether so many connections of the service wait for a lock."""
    waiting = "select count(*) from pg_stat_activity where usename = 'session' and wait_event_type = 'Lock'"
    async with superuser(postgres) as link:
        row = await (await link.execute(waiting)).fetchone()
    return row is not None and row[0] >= count


def agent(name: str, *servers: str) -> AgentProfile:
    return AgentProfile(agent_id=name, mcp_servers=servers)


async def test_UpdateAgent__the_tenants_settings_say_how_many(mesh: Mesh, postgres: Postgres) -> None:
    await update(mesh, TenantSettings(max_agent_count=3), "settings.max_agent_count")
    async with superuser(postgres) as link, link.transaction():
        # Reads succeed while new agents wait.
        await link.execute("lock table session.agents in share row exclusive mode")
        putting = [asyncio.ensure_future(mesh.put_agent(agent(f"a-{number}"))) for number in range(6)]
        await eventually(lambda: wait_for_locks(postgres, 2))  # The others wait for them, or for a place.
    outcomes = await asyncio.gather(*putting, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, MeshError)]
    assert [(error.reason, error.status, error.facts) for error in failed] == [
        (Reason.AGENT_COUNT_EXCEEDED, Status.RESOURCE_EXHAUSTED, {"limit": "3", "agents": "3"})
    ] * 4
    await update(mesh, TenantSettings(max_agent_count=4), "settings.max_agent_count")
    await mesh.put_agent(agent("one-more"))
    await update(mesh, TenantSettings(max_agent_count=1), "settings.max_agent_count")
    await mesh.put_agent(agent("one-more", "weather"))


async def test_UpdateAgent__as_many_mcp_servers_as_an_agent_may_name(mesh: Mesh) -> None:
    names = [f"server-{number}" for number in range(9)]
    await mesh.put_agent(agent("clerk", *names[:8]))
    with pytest.raises(MeshError) as caught:
        await mesh.put_agent(agent("clerk", *names))
    error = caught.value
    assert (error.reason, error.status) == (Reason.MCP_SERVER_COUNT_EXCEEDED, Status.RESOURCE_EXHAUSTED)
    assert error.facts == {"limit": "8", "mcp_servers": "9"}
    await update(mesh, TenantSettings(max_mcp_server_count=9), "settings.max_mcp_server_count")
    await mesh.put_agent(agent("clerk", *names))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (TenantSettings(max_agent_count=10_001), "settings.max_agent_count"),
        (TenantSettings(max_mcp_server_count=17), "settings.max_mcp_server_count"),
        (TenantSettings(plugins=PluginLimits(max_plugin_count=257)), "settings.plugins.max_plugin_count"),
        (TenantSettings(plugins=PluginLimits(max_gate_count=65)), "settings.plugins.max_gate_count"),
    ],
)
async def test_UpdateTenant__no_limit_is_above_its_bound(
    mesh: Mesh, settings: TenantSettings, field: str
) -> None:
    with pytest.raises(MeshError) as caught:
        await update(mesh, settings, field)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.violations[0].field == f"tenant.{field}"


async def test_UpdateTenant__pushes_the_limits_of_plugins(mesh: Mesh, peers: dict[str, str]) -> None:
    async with caller_at(peers["hook"], "hook") as peer:
        stub: Any = HookServiceStub(peer.channel)

        async def register(name: str) -> None:
            plugin = hook_pb.Plugin(name=name, endpoint="grpc://127.0.0.1:1", hooks=[HOOK_KIND_BEFORE_SPAWN])
            request = hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
            with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
                await peer.unary(stub.UpdatePlugin, request, timeout_seconds=60)

        await register("a")
        limits = TenantSettings(plugins=PluginLimits(max_gate_count=1))
        await update(mesh, limits, "settings.plugins.max_gate_count")
        with pytest.raises(MeshError) as caught:
            await register("b")
    assert (caught.value.reason, caught.value.facts["limit"]) == (Reason.GATE_COUNT_EXCEEDED, "1")
