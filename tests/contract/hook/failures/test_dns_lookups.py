"""Endpoints whose DNS lookup is slow or fails."""

import asyncio
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from threading import Event

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.clients import dns_resolver
from spawnmesh_hook.clients.dns_resolver import MAX_LOOKUPS_OF_TENANT
from spawnmesh_hook.domain.circuit_breaker import FAILURES_TO_OPEN
from spawnmesh_hook.domain.endpoints import Address

from tests.support.hook.fixtures import SPAWN, HookMesh, refused
from tests.support.hook.scripted_plugin import ALLOW
from tests.support.waiting import eventually


class Names:
    """A resolver. Names in `.slow.test` hang until `released` is set. Others lead to 127.0.0.1."""

    def __init__(self) -> None:
        self.released = Event()
        self.is_down = False
        self.hanging_count = 0

    def resolve(self, host: str) -> Iterable[Address]:
        if host.endswith(".slow.test"):
            self.hanging_count += 1
            self.released.wait(600)
        if self.is_down:
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure")
        return [ip_address("127.0.0.1")]


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    names.released.set()


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a lookup after half a second."""
    monkeypatch.setattr(dns_resolver, "TIMEOUT_SECONDS", 0.5)


async def test_lookups_of_one_tenant_do_not_block_other_tenants(mesh: HookMesh, names: Names) -> None:
    plugin, replica = await mesh.plugin(ALLOW, host="good.test"), await mesh.replica(resolve=names.resolve)
    tenant, hostile = mesh.tenant(replica), mesh.tenant(replica)
    await tenant.register("gate", plugin.endpoint, SPAWN)
    await hostile.prepare(1, plugins=PluginLimits(max_plugin_count=40, max_gate_count=40))
    registering = [
        asyncio.create_task(hostile.register(f"p{place}", f"grpc://n{place}.slow.test:80", SPAWN))
        for place in range(40)
    ]
    await eventually(lambda: names.hanging_count >= MAX_LOOKUPS_OF_TENANT)
    for _ in range(FAILURES_TO_OPEN + 1):
        assert (await tenant.spawn()).decision == ALLOW
    await asyncio.gather(*registering)
    assert len(await hostile.plugin_names()) == 40


@pytest.mark.usefixtures("short_timeout")
async def test_a_failed_dns_lookup_does_not_count_against_the_plugin(mesh: HookMesh, names: Names) -> None:
    plugin = await mesh.plugin(ALLOW, host="a.slow.test")
    tenant = mesh.tenant(await mesh.replica(resolve=names.resolve))
    await tenant.register("gate", plugin.endpoint, SPAWN)
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name failed: no answer of the resolver within 0.5 s" in caught.value.message
    names.released.set()
    assert (await tenant.spawn()).decision == ALLOW
    names.is_down = True
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name failed: the resolver" in caught.value.message
    names.is_down = False
    assert (await tenant.spawn()).decision == ALLOW


async def test_a_lookup_longer_than_the_timeout_does_not_count_against_the_plugin(
    mesh: HookMesh, names: Names
) -> None:
    plugin = await mesh.plugin(ALLOW, host="a.slow.test")
    tenant = mesh.tenant(await mesh.replica(resolve=names.resolve))
    await tenant.register("gate", plugin.endpoint, SPAWN, timeout=Duration(nanos=200_000_000))
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name failed: no time was left for it" in caught.value.message
    names.released.set()
    assert (await tenant.spawn()).decision == ALLOW


@pytest.mark.usefixtures("short_timeout")
async def test_UpdatePlugin__the_tenant_has_its_maximum_of_lookups(mesh: HookMesh, names: Names) -> None:
    plugin = await mesh.plugin(ALLOW, host="good.test")
    tenant = mesh.tenant(await mesh.replica(resolve=names.resolve))
    slow = [
        tenant.register(f"p{place}", f"grpc://n{place}.slow.test:80", SPAWN)
        for place in range(MAX_LOOKUPS_OF_TENANT)
    ]
    await tenant.prepare(1)
    await asyncio.gather(*slow)
    with refused(Reason.ENDPOINT_NOT_REACHED) as caught:
        await tenant.register("gate", plugin.endpoint, SPAWN, allow_unreachable=False)
    assert "its maximum, did not end within 0.5 s" in caught.value.message
    names.released.set()
    await tenant.register("gate", plugin.endpoint, SPAWN, allow_unreachable=False)


@pytest.mark.usefixtures("short_timeout")
async def test_UpdatePlugin__a_name_outside_the_list_whose_lookup_fails(mesh: HookMesh, names: Names) -> None:
    tenant = mesh.tenant(await mesh.replica(resolve=names.resolve, allowed_endpoint_hosts=["*.example.com"]))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await tenant.register("a", "grpc://a.slow.test:80", SPAWN)
