"""UpdatePlugin, ListPlugins and DeletePlugin."""

from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_calls.contracts import mesh_services, service_descriptor
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.methods import policy_of

from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    CONTROL,
    ENDED,
    FINALIZE,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW

HERE = "grpc://127.0.0.1:7000"


async def test_UpdatePlugin__fills_in_defaults(tenant: Tenant) -> None:
    gate = await tenant.register("gate", HERE, ENDED, SPAWN)
    observer = await tenant.register("observer", HERE, ENDED)
    assert (gate.failure_policy, gate.timeout.ToSeconds()) == (CLOSED, 15)
    assert (observer.failure_policy, observer.timeout.ToSeconds()) == (OPEN, 15)


async def test_UpdatePlugin__stores_all_fields(tenant: Tenant) -> None:
    given = pb.Plugin(
        name="a-1",
        endpoint=HERE,
        hooks=[FINALIZE, SPAWN],
        priority=-7,
        timeout=Duration(seconds=1, nanos=500_000_000),
        failure_policy=CLOSED,
        grants=[CONTROL, CONTENT],
        max_concurrent_calls=3,
        max_wait=Duration(seconds=90, nanos=250_000_000),
    )
    answer = await tenant.as_client(
        "UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=given, allow_unreachable=True)
    )
    given.etag = answer.plugin.etag
    assert given.etag
    assert answer.plugin == given
    assert list((await tenant.as_client("ListPlugins", pb.ListPluginsRequest())).plugins) == [given]
    assert (await tenant.as_client("GetPlugin", pb.GetPluginRequest(name="a-1"))).plugin == given


async def test_UpdatePlugin__unknown_tenant(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = pb.Plugin(name="a", endpoint=(await mesh.plugin()).endpoint, hooks=[SPAWN])
    tenant.is_ready = True  # The tenant exists only as the issuer of a token.
    with refused(Reason.UNKNOWN_TENANT):
        await tenant.as_client("UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert await tenant.plugin_names() == []
    await tenant.prepare(1)
    await tenant.as_client("UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert await tenant.plugin_names() == ["a"]


async def test_ListPlugins__ordered_by_priority_then_registration(tenant: Tenant) -> None:
    for name, priority in (("b", 0), ("a", 0), ("low", -1), ("high", 5)):
        await tenant.register(name, HERE, SPAWN, priority=priority)
    await tenant.register("b", "grpc://127.0.0.1:7001", ENDED)
    assert await tenant.plugin_names() == ["high", "b", "a", "low"]
    replaced = (await tenant.as_client("ListPlugins", pb.ListPluginsRequest())).plugins[1]
    assert (replaced.endpoint, list(replaced.hooks)) == ("grpc://127.0.0.1:7001", [ENDED])


async def test_DeletePlugin__is_idempotent(tenant: Tenant) -> None:
    await tenant.register("a", HERE, SPAWN)
    for _ in range(2):
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="a"))
        assert await tenant.plugin_names() == []


async def test_UpdatePlugin__finalize_hook_without_the_grant(tenant: Tenant) -> None:
    plugin = pb.Plugin(name="a", endpoint=HERE, hooks=[FINALIZE], grants=[CONTENT])
    with refused(Reason.GRANT_MISSING) as caught:
        await tenant.as_client("UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    assert caught.value.facts["grant"] == "FINALIZE_CONTROL"
    assert await tenant.plugin_names() == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "169.254.169.254", "0.0.0.0"]
)
async def test_UpdatePlugin__private_endpoint(mesh: HookMesh, host: str) -> None:
    tenant = mesh.tenant(await mesh.replica(allow_private_endpoints=False))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await tenant.register("a", f"grpc://{host}:7000", SPAWN)
    assert await tenant.plugin_names() == []


async def test_UpdatePlugin__endpoint_outside_the_list(mesh: HookMesh) -> None:
    settings: dict[str, Any] = {"allow_private_endpoints": False, "allowed_endpoint_hosts": ["127.0.0.0/8"]}
    tenant = mesh.tenant(await mesh.replica(**settings))
    await tenant.register("inside", HERE, SPAWN)
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await tenant.register("outside", "grpc://93.184.215.14:443", SPAWN)


@pytest.mark.parametrize(
    "endpoint", ["grpc://host", "grpc://host:0", "grpc://a@host:1", "grpc://host:1/path"]
)
async def test_UpdatePlugin__malformed_endpoint(tenant: Tenant, endpoint: str) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await tenant.register("a", endpoint, SPAWN)
    assert [violation.field for violation in caught.value.violations] == ["plugin.endpoint"]


async def test_another_tenants_plugins_are_invisible(mesh: HookMesh) -> None:
    replica = await mesh.replica()
    one, other = mesh.tenant(replica), mesh.tenant(replica)
    plugin = await mesh.plugin(ALLOW)
    await one.register("a", plugin.endpoint, SPAWN)
    await other.as_client("DeletePlugin", pb.DeletePluginRequest(name="a"))
    assert await one.plugin_names() == ["a"]
    assert await other.plugin_names() == []
    await other.spawn()
    assert plugin.heard == []
    await one.spawn()
    assert len(plugin.heard) == 1
    assert len(await one.deliveries()) == 1
    assert await other.deliveries() == []


async def test_callers_of_each_rpc(tenant: Tenant) -> None:
    with refused(Reason.CALLER_NOT_ALLOWED):
        await tenant.as_session("ListPlugins", pb.ListPluginsRequest())
    with refused(Reason.CALLER_NOT_ALLOWED):
        await tenant.as_client(
            "DispatchBeforeSpawn", pb.DispatchBeforeSpawnRequest(event=events.BeforeSpawnEvent())
        )


def test_the_token_for_plugins_is_valid_for_plugins_only() -> None:
    opened = {
        method.full_name
        for one in mesh_services()
        for method in one.methods
        if "hook" in policy_of(method).services and not policy_of(method).without_tenant
    }
    assert opened == {
        method.full_name for method in service_descriptor("spawnmesh.hook.v1.HookHandlerService").methods
    }


@pytest.mark.parametrize(
    "table", ["plugins", "deliveries", "decisions", "run_revisions", "observed_events", "jobs"]
)
async def test_without_a_tenant_no_table_shows_a_row(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn], table: str
) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN, ENDED)
    await tenant.spawn()
    await tenant.ended()
    await tenant.draft("k")
    async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
        found = await connection.execute(
            psycopg.sql.SQL("select 1 from {}").format(psycopg.sql.Identifier(table))
        )
        assert await found.fetchall() == []
        protected = await connection.execute(
            "select relrowsecurity and relforcerowsecurity from pg_class where oid = %s::regclass", (table,)
        )
        assert await protected.fetchone() == (True,)
