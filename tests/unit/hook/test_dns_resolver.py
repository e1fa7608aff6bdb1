"""The DNS resolver: one lookup for a name, at most four for a tenant."""

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from threading import Event

import pytest
from spawnmesh_hook.clients.dns_resolver import MAX_LOOKUPS, MAX_LOOKUPS_OF_TENANT, DnsResolver
from spawnmesh_hook.domain.endpoints import Address

from tests.support.waiting import eventually

HERE = ip_address("127.0.0.1")


class Resolver:
    """Answers once `open` is set."""

    def __init__(self) -> None:
        self.open = Event()
        self.hosts: list[str] = []

    def __call__(self, host: str) -> Iterable[Address]:
        self.hosts.append(host)
        self.open.wait(600)
        return [HERE, HERE]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    resolver = Resolver()
    yield resolver
    resolver.open.set()


async def test_concurrent_callers_share_one_lookup_and_nothing_is_cached(resolver: Resolver) -> None:
    lookups = DnsResolver(resolver)
    waiting = [asyncio.create_task(lookups.addresses_of("a.test", f"t{place}")) for place in range(10)]
    await eventually(lambda: resolver.hosts == ["a.test"])
    waiting.pop().cancel()
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * 9
    assert resolver.hosts == ["a.test"]
    await lookups.addresses_of("a.test", "t0")
    assert resolver.hosts == ["a.test"] * 2


async def test_lookups_beyond_the_tenants_maximum_wait(resolver: Resolver) -> None:
    lookups = DnsResolver(resolver)
    waiting = [
        asyncio.create_task(lookups.addresses_of(f"{place}.test", "t"))
        for place in range(2 * MAX_LOOKUPS_OF_TENANT)
    ]
    await eventually(lambda: len(resolver.hosts) >= MAX_LOOKUPS_OF_TENANT)
    assert len(resolver.hosts) == MAX_LOOKUPS_OF_TENANT
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * 2 * MAX_LOOKUPS_OF_TENANT


async def test_lookups_of_all_tenants_are_bounded_but_not_the_operators(resolver: Resolver) -> None:
    lookups = DnsResolver(resolver)
    waiting = [
        asyncio.create_task(lookups.addresses_of(f"{place}.test", f"t{place}"))
        for place in range(MAX_LOOKUPS + 1)
    ]
    await eventually(lambda: len(resolver.hosts) >= MAX_LOOKUPS)
    assert len(resolver.hosts) == MAX_LOOKUPS
    waiting.append(asyncio.create_task(lookups.addresses_of("operator.test", None)))
    await eventually(lambda: resolver.hosts[-1] == "operator.test")
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * len(waiting)


async def test_a_malformed_name_has_no_address() -> None:
    assert await DnsResolver().addresses_of("a" * 64 + ".test", "t") == ()
