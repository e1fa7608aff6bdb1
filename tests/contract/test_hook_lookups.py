"""Endpoints whose names are looked up slowly, or not at all."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from threading import Event

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.breaker import FAILURES_TO_OPEN
from spawnmesh_hook.domain.endpoints import Address
from spawnmesh_hook.lookups import MOST_OF_A_TENANT

from tests.contract.hook_fixtures import ALLOW, SPAWN, HookMesh, open_mesh, refused


class Names:
    """The system's resolver: what ends in `.slow.test` has a nameserver that says nothing until it is `released`; the rest is this machine."""

    def __init__(self) -> None:
        self.released = Event()
        self.is_down = False

    def look_up(self, host: str) -> Iterable[Address]:
        if host.endswith(".slow.test"):
            self.released.wait(60)
        if self.is_down:
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure")
        return [ip_address("127.0.0.1")]


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    names.released.set()


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


async def test_names_of_one_tenant_keep_nobody_elses_from_being_looked_up(mesh: HookMesh, names: Names) -> None:
    plugin, replica = await mesh.plugin(ALLOW, host="good.test"), await mesh.replica(look_up=names.look_up)
    tenant, hostile = mesh.tenant(replica), mesh.tenant(replica)
    await tenant.register("gate", plugin.endpoint, SPAWN)
    await hostile.prepare(1)
    registering = [
        asyncio.create_task(hostile.register(f"p{place}", f"grpc://n{place}.slow.test:80", SPAWN))
        for place in range(40)
    ]
    for _ in range(FAILURES_TO_OPEN + 1):
        await asyncio.sleep(0.2)
        assert (await tenant.spawn()).decision == ALLOW
    await asyncio.gather(*registering)
    assert len(await hostile.plugin_names()) == 40


async def test_what_is_not_looked_up_is_not_held_against_the_plugin(mesh: HookMesh, names: Names) -> None:
    plugin = await mesh.plugin(ALLOW, host="a.slow.test")
    tenant = mesh.tenant(await mesh.replica(look_up=names.look_up))
    await tenant.register("gate", plugin.endpoint, SPAWN)
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name was not looked up: no answer of the resolver within 2 s" in caught.value.message
    names.released.set()
    assert (await tenant.spawn()).decision == ALLOW
    names.is_down = True
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name was not looked up: the resolver" in caught.value.message
    names.is_down = False
    assert (await tenant.spawn()).decision == ALLOW


async def test_a_plugin_with_less_time_than_its_look_up_takes_is_not_blamed(mesh: HookMesh, names: Names) -> None:
    plugin = await mesh.plugin(ALLOW, host="a.slow.test")
    tenant = mesh.tenant(await mesh.replica(look_up=names.look_up))
    await tenant.register("gate", plugin.endpoint, SPAWN, timeout=Duration(seconds=1))
    for _ in range(FAILURES_TO_OPEN):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert "name was not looked up: no time was left for it" in caught.value.message
    names.released.set()
    assert (await tenant.spawn()).decision == ALLOW


async def test_a_tenant_with_all_its_look_ups_under_way_is_told_so(mesh: HookMesh, names: Names) -> None:
    plugin = await mesh.plugin(ALLOW, host="good.test")
    tenant = mesh.tenant(await mesh.replica(look_up=names.look_up))
    slow = [tenant.register(f"p{place}", f"grpc://n{place}.slow.test:80", SPAWN) for place in range(MOST_OF_A_TENANT)]
    await tenant.prepare(1)
    await asyncio.gather(*slow)
    with refused(Reason.ENDPOINT_NOT_REACHED) as caught:
        await tenant.register("gate", plugin.endpoint, SPAWN, allow_unreachable=False)
    assert "as many as it may have, left no room within 2 s" in caught.value.message
    names.released.set()
    await tenant.register("gate", plugin.endpoint, SPAWN, allow_unreachable=False)


async def test_RegisterPlugin__a_name_off_the_list_that_is_not_looked_up(mesh: HookMesh, names: Names) -> None:
    tenant = mesh.tenant(await mesh.replica(look_up=names.look_up, allowed_endpoint_hosts=["*.example.com"]))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await tenant.register("a", "grpc://a.slow.test:80", SPAWN)
