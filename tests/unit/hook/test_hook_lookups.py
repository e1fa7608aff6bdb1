"""Look-ups in threads of their own: one for a name, few for a tenant."""

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from threading import Event

import pytest
from spawnmesh_hook.domain.endpoints import Address
from spawnmesh_hook.lookups import MOST_OF_A_TENANT, MOST_OF_ALL, Lookups

HERE = ip_address("127.0.0.1")


class Resolver:
    """Answers when it is `open`."""

    def __init__(self) -> None:
        self.open = Event()
        self.asked: list[str] = []

    def __call__(self, host: str) -> Iterable[Address]:
        self.asked.append(host)
        self.open.wait(30)
        return [HERE, HERE]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    resolver = Resolver()
    yield resolver
    resolver.open.set()


async def test_all_who_ask_for_a_name_wait_for_one_look_up_and_nothing_is_kept(resolver: Resolver) -> None:
    lookups = Lookups(resolver)
    waiting = [asyncio.create_task(lookups.addresses_of("a.test", f"t{place}")) for place in range(10)]
    await asyncio.sleep(0.1)
    waiting.pop().cancel()
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * 9
    assert resolver.asked == ["a.test"]
    await lookups.addresses_of("a.test", "t0")
    assert resolver.asked == ["a.test"] * 2


async def test_a_tenant_has_few_and_the_others_wait_for_one_of_them_to_end(resolver: Resolver) -> None:
    lookups = Lookups(resolver)
    waiting = [asyncio.create_task(lookups.addresses_of(f"{place}.test", "t")) for place in range(2 * MOST_OF_A_TENANT)]
    await asyncio.sleep(0.1)
    assert len(resolver.asked) == MOST_OF_A_TENANT
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * 2 * MOST_OF_A_TENANT


async def test_all_tenants_have_a_bound_and_the_operators_names_are_beyond_it(resolver: Resolver) -> None:
    lookups = Lookups(resolver)
    waiting = [
        asyncio.create_task(lookups.addresses_of(f"{place}.test", f"t{place}")) for place in range(MOST_OF_ALL + 1)
    ]
    await asyncio.sleep(0.2)
    assert len(resolver.asked) == MOST_OF_ALL
    waiting.append(asyncio.create_task(lookups.addresses_of("operator.test", None)))
    await asyncio.sleep(0.1)
    assert resolver.asked[-1] == "operator.test"
    resolver.open.set()
    assert await asyncio.gather(*waiting) == [(HERE,)] * len(waiting)


async def test_what_no_name_can_be_leads_nowhere() -> None:
    assert await Lookups().addresses_of("a" * 64 + ".test", "t") == ()
