"""Connections to plugins that are kept between calls."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from spawnmesh_devstack.ports import free_ports
from spawnmesh_hook.domain.endpoints import Address, Endpoint, literal_address, parse_rules
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.errors import EndpointNotAllowed
from spawnmesh_hook.plugin_peers import LeadsNowhere, PluginPeers
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.settings import ProcessSettings

NAMES: dict[str, tuple[str, ...]] = {
    "one.example.com": ("127.0.0.1",),
    "both.example.com": ("127.0.0.1", "::1", "127.0.0.2"),
    "nowhere.example.com": (),
    "mixed.example.com": ("127.0.0.1", "169.254.169.254"),
}


async def look_up(name: str) -> tuple[Address, ...]:
    return tuple(filter(None, map(literal_address, NAMES.get(name, (name,)))))


@pytest.fixture
async def process(keys: Path) -> AsyncIterator[Process]:
    async with start_process("hook", ProcessSettings(signing_key_file=keys / "hook.pem", log_level="error")) as started:
        yield started


@pytest.fixture
async def peers(process: Process) -> AsyncIterator[PluginPeers]:
    opened = PluginPeers(process, EndpointGuard(parse_rules((), allow_private=True), look_up), max_idle=2)
    yield opened
    await opened.close()


async def test_a_name_and_its_address_share_a_connection(peers: PluginPeers) -> None:
    async with peers.peer(Endpoint("one.example.com", 1)) as by_name:
        pass
    async with peers.peer(Endpoint("127.0.0.1", 1)) as by_address:
        assert by_address is by_name
    async with peers.peer(Endpoint("127.0.0.1", 2)) as other_port:
        assert other_port is not by_name


async def test_the_least_recently_used_is_closed_first(peers: PluginPeers) -> None:
    used = []
    for port in (1, 2, 1, 3):
        async with peers.peer(Endpoint("127.0.0.1", port)) as peer:
            used.append(peer)
    async with peers.peer(Endpoint("127.0.0.1", 1)) as kept:
        assert kept is used[0]
    async with peers.peer(Endpoint("127.0.0.1", 2)) as opened_again:
        assert opened_again is not used[1]


async def test_a_connection_that_waits_to_be_tried_again_is_not_waited_for(peers: PluginPeers) -> None:
    (port,) = free_ports(1)
    async with peers.peer(Endpoint("127.0.0.1", port)) as failing, asyncio.timeout(10):
        while (state := failing.channel.get_state(True)) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await failing.channel.wait_for_state_change(state)
    async with peers.peer(Endpoint("127.0.0.1", port)) as anew:
        assert anew is not failing


async def test_a_connection_in_use_stays_open(peers: PluginPeers) -> None:
    async with peers.peer(Endpoint("127.0.0.1", 9)) as busy:
        for port in (1, 2, 3):
            async with peers.peer(Endpoint("127.0.0.1", port)):
                pass
        async with peers.peer(Endpoint("127.0.0.1", 9)) as same:
            assert same is busy


async def test_where_nothing_can_or_may_be_dialled(peers: PluginPeers) -> None:
    with pytest.raises(LeadsNowhere):
        async with peers.peer(Endpoint("nowhere.example.com", 1)):
            pass
    with pytest.raises(EndpointNotAllowed):
        async with peers.peer(Endpoint("mixed.example.com", 1)):
            pass
    async with peers.peer(Endpoint("both.example.com", 1)) as peer:
        assert peer.channel is not None
