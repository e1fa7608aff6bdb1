"""Round trips of PublishEvents to the database: as many for many webhooks and events as for one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.fixtures import HookMesh, Tenant, hook_replica
from tests.support.hook.webhook_receiver import NO_RECEIVER, Execute, put_webhook, run_ended
from tests.support.links import to_postgres
from tests.support.round_trips import RoundTrips, open_counting_link

EVENTS, WEBHOOKS = 100, 32


@pytest.fixture
async def link(databases: dict[str, ServiceDsn]) -> AsyncIterator[RoundTrips]:
    async with open_counting_link(to_postgres(databases["hook"].app)) as opened:
        yield opened


async def round_trips(tenant: Tenant, link: RoundTrips, first: int, count: int, stored: int) -> int:
    """Return the round trips of a call with so many new events. The cache of webhooks may be old."""
    before = link.count
    events = [run_ended(number, session_id="ses_" + "x" * 50) for number in range(first, first + count)]
    assert await tenant.publish(*events) == stored
    return link.count - before


async def test_PublishEvents__many_messages_take_as_many_round_trips_as_one(
    mesh: HookMesh,
    tenant: Tenant,
    link: RoundTrips,
    databases: dict[str, ServiceDsn],
    keys: Path,
    execute: Execute,
) -> None:
    host, _, port = link.target.partition(":")
    app = make_conninfo(databases["hook"].app, host=host, port=port, sslmode="disable")
    async with hook_replica(replace(databases["hook"], app=app), keys) as peer:
        here = tenant.on(peer)
        await put_webhook(tenant, NO_RECEIVER, name="w0")
        one = min([await round_trips(here, link, number, 1, 1) for number in range(8)])
        for number in range(1, WEBHOOKS):
            await put_webhook(tenant, NO_RECEIVER, name=f"w{number}")
        counts = []
        for number in range(1, 4):
            first = EVENTS * number
            counts.append(await round_trips(here, link, first, EVENTS, EVENTS * WEBHOOKS))
        assert await execute("select count(*) from jobs") == [(WEBHOOKS,)]
    assert min(counts) <= one <= 6
