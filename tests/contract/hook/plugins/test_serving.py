"""A served plugin answers for its tenants only, and its token is valid for plugins only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    HookHandlerServiceStub,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.policy.v1.policy_pb2 import call_policy
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.hook.fixtures import CLOSED, SPAWN, HookMesh, Tenant, ended, hook_settings, refused
from tests.support.hook.plugin_process import serving
from tests.support.hook.scripted_plugin import ALLOW
from tests.support.serving import caller_at, served

MODULE = """
from pathlib import Path

from spawnmesh_plugin import allow, hook

LOG = Path("{log}")


@hook("before_spawn")
async def judge(event):
    with LOG.open("a") as out:
        out.write("asked about " + event.session_id + "\\n")
    return allow()


@hook("subagent_ended")
async def hear(event):
    with LOG.open("a") as out:
        out.write("told of " + event.session_id + "\\n")
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to which the served plugins write a line for each call."""
    folder = tmp_path_factory.mktemp("plugin")
    file = folder / "heard.txt"
    file.write_text("")
    (folder / "their_plugin.py").write_text(MODULE.format(log=file))
    return file


@pytest.fixture(scope="module")
async def endpoint(fork_server: ForkServer, keys: Path, log: Path) -> AsyncIterator[str]:
    """The endpoint of a process that serves the plugin for all tenants."""
    async with serving(fork_server, "their_plugin", keys, cwd=log.parent) as served_at:
        yield served_at


class Curious(HookHandlerServiceServicer):
    """A plugin that stores the token of its calls."""

    def __init__(self) -> None:
        self.token = ""

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> handler_pb.HandleBeforeSpawnResponse:
        self.token = dict(context.invocation_metadata())["authorization"].removeprefix("Bearer ")
        return handler_pb.HandleBeforeSpawnResponse(decision=ALLOW)


@asynccontextmanager
async def curious() -> AsyncIterator[tuple[Curious, str]]:
    plugin, server = Curious(), grpc.aio.server()
    add_HookHandlerServiceServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield plugin, f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def kept_token(tenant: Tenant) -> str:
    """Return the token with which a plugin of the tenant is called."""
    async with curious() as (plugin, endpoint):
        await tenant.register("mine", endpoint, SPAWN)
        await tenant.spawn()
    return plugin.token


async def test_a_plugin_answers_for_its_tenants_only(
    fork_server: ForkServer, mesh: HookMesh, replica: Peer, keys: Path, log: Path
) -> None:
    one, other, stranger = (mesh.tenant(replica) for _ in range(3))
    tenant_ids = (one.tenant_id, other.tenant_id)
    async with serving(fork_server, "their_plugin", keys, *tenant_ids, cwd=log.parent) as endpoint:
        for tenant in (one, other, stranger):
            await tenant.register("gate", endpoint, SPAWN, policy=CLOSED)
        assert (await one.spawn(session_id="ses_one")).decision == ALLOW
        assert (await other.spawn(session_id="ses_other")).decision == ALLOW
        with refused(Reason.PLUGIN_FAILED):
            await stranger.spawn(session_id="ses_stranger")
    assert "asked about ses_one\nasked about ses_other\n" in log.read_text()
    assert "ses_stranger" not in log.read_text()
    (delivery,) = await stranger.deliveries()
    assert (
        delivery.error
        == "the call failed: CALLER_NOT_ALLOWED, for example because it is not served for this tenant"
    )


async def test_a_plugin_for_all_tenants_answers_for_each(tenant: Tenant, endpoint: str) -> None:
    await tenant.register("gate", endpoint, SPAWN, policy=CLOSED)
    assert (await tenant.spawn()).decision == ALLOW


async def test_a_plugin_answers_at_its_own_endpoint_only(tenant: Tenant, endpoint: str, log: Path) -> None:
    await tenant.register("gate", endpoint.replace("127.0.0.1", "localhost"), SPAWN, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn(session_id="ses_at_localhost")
    assert "ses_at_localhost" not in log.read_text()
    (delivery,) = await tenant.deliveries()
    assert delivery.error.startswith(
        "the call failed: TOKEN_INVALID, for example because it is served for another endpoint"
    )


async def test_the_token_of_a_call_is_refused_by_other_plugins(
    tenant: Tenant, endpoint: str, log: Path
) -> None:
    token = await kept_token(tenant)
    forged = handler_pb.HandleObservedEventRequest(event=ended("ended:1", session_id="ses_of_another"))
    async with caller_at(endpoint.removeprefix("grpc://"), "plugin") as peer:
        with use_token(token), refused(Reason.TOKEN_INVALID) as caught:
            await peer.unary(
                HookHandlerServiceStub(peer.channel).HandleObservedEvent, forged, timeout_seconds=60
            )
    assert f"another audience than spawnmesh/{endpoint}" in caught.value.message
    assert "ses_of_another" not in log.read_text()


async def test_the_token_of_a_call_is_refused_by_services_of_the_mesh(
    tenant: Tenant, databases: dict[str, ServiceDsn], keys: Path
) -> None:
    token = await kept_token(tenant)
    async with (
        served("hook", hook_settings(databases["hook"], keys), open_service) as target,
        caller_at(target, "hook") as peer,
    ):
        with use_token(token), refused(Reason.TOKEN_INVALID):
            await peer.unary(
                HookServiceStub(peer.channel).ListPlugins, pb.ListPluginsRequest(), timeout_seconds=60
            )


def test_a_service_token_of_hook_is_valid_for_plugins_only() -> None:
    methods = [method for service in mesh_services() for method in service.methods]
    policies = [(method, method.GetOptions().Extensions[call_policy]) for method in methods]
    opened = {
        (method.containing_service.name, policy.without_tenant)
        for method, policy in policies
        if "hook" in policy.services
    }
    # The lists of revoked tokens and of call limits have ids and numbers alone.
    assert opened == {("HookHandlerService", False), ("TokenService", True), ("TenantService", True)}
