"""Limits hold while the database is away, and a tenant whose limits are unknown calls no model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_model_router.operations import policy_cache

from tests.support.captured_logs import captured_events
from tests.support.links import Link, open_link, to_postgres
from tests.support.model_router import failures, spending
from tests.support.model_router.fixtures import Router, World, user
from tests.support.model_router.provider import BROKEN, chat, openai_error, sse
from tests.support.waiting import eventually


@dataclass
class Way:
    """The way of a router to its database, which a test can close and open."""

    dsn: ServiceDsn
    link: Link
    is_open: bool = True

    def close(self) -> None:
        self.is_open = False
        self.link.cut()


@asynccontextmanager
async def way_to(dsn: ServiceDsn) -> AsyncIterator[Way]:
    dial = to_postgres(dsn.app)
    ways: list[Way] = []

    async def dial_if_open() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if ways and not ways[0].is_open:
            raise ConnectionRefusedError
        return await dial()

    async with open_link(dial_if_open) as link:
        host, port = link.target.split(":")
        way = Way(replace(dsn, app=make_conninfo(dsn.app, host=host, port=port)), link)
        ways.append(way)
        yield way


@pytest.fixture
async def way(world: World) -> AsyncIterator[Way]:
    world.provider.on("one", sse(*chat("one")))
    async with way_to(world.dsn) as opened:
        world.dsn, world.database_timeout_seconds = opened.dsn, 0.5
        yield opened


def priced(world: World) -> dict[str, object]:
    """Return a configuration in which a token costs a millionth; an answer has 25."""
    config = world.config()
    prices = {f"{sort}_micros_per_million_tokens": 10**6 for sort in ("input", "output")}
    config["models"][world.ref("one")] |= prices
    return config


async def reason_of(router: Router, model: str) -> Reason | None:
    answered = await router.generate(model, strict=True)
    return None if answered.refusal is None else answered.refusal.reason


async def spent(world: World, router: Router) -> int:
    """Return the stored spending of the tenant's day, in millionths."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (router.tenant,))
        query = "select coalesce(sum(spend_micros), 0)::int from budget_periods where period = 'DAY'"
        [micros] = await (await connection.execute(query)).fetchone() or (0,)
    return int(micros)


async def test_Generate__a_tenant_that_was_never_created_calls_no_model(world: World) -> None:
    world.provider.on("one", sse(*chat("one")))
    router = await world.router(is_prepared=False)
    assert await reason_of(router, world.ref("one")) is Reason.UNKNOWN_TENANT
    request = pb.GenerateRequest(model=world.ref("one"), messages=[user("hello")])
    with pytest.raises(MeshError) as refused:
        await router.call("ExplainRoute", pb.ExplainRouteRequest(request=request))
    assert refused.value.reason is Reason.UNKNOWN_TENANT
    assert world.provider.asked("one") == 0
    await router.prepare(1)
    assert await reason_of(router, world.ref("one")) is None


async def test_Generate__limits_hold_while_the_database_is_away_and_usage_is_stored_later(
    world: World, way: Way
) -> None:
    router = await world.router(priced(world))
    await router.prepare(1, max_spend_micros_per_day=100)
    assert await reason_of(router, world.ref("one")) is None
    way.close()
    assert [await reason_of(router, world.ref("one")) for _ in range(4)] == [
        None,
        None,
        None,
        Reason.BUDGET_EXCEEDED,
    ]
    assert world.provider.asked("one") == 4
    way.is_open = True
    await router.prepare(2, max_spend_micros_per_day=1_000)

    async def is_stored() -> bool:
        """The new policy is read when the circuit breaker closes."""
        is_admitted = await reason_of(router, world.ref("one")) is None
        return is_admitted and await spent(world, router) == 25 * world.provider.asked("one")

    await eventually(is_stored)


@pytest.mark.usefixtures("quick_spend")
async def test_ListSpend__calls_while_the_database_is_away_are_listed_later(world: World, way: Way) -> None:
    router = await world.router(priced(world))
    assert await reason_of(router, world.ref("one")) is None
    await spending.spent(router, 1)
    way.close()
    with captured_events() as logs:
        assert [await reason_of(router, world.ref("one")) for _ in range(3)] == [None, None, None]
        await eventually(lambda: "usage_sums_kept" in [entry["event"] for entry in logs])
    way.is_open = True
    assert await spending.spent(router, 4) == [("", "one", 4, 4 * 25)]


@pytest.mark.usefixtures("quick_spend")
async def test_ListFailures__failures_while_the_database_is_away_are_listed_later(
    world: World, way: Way
) -> None:
    world.provider.on("two", openai_error(400, "flagged by our usage policy", "invalid_request_error", None))
    router = await world.router()
    assert await reason_of(router, world.ref("two")) is Reason.MODEL_REFUSED
    await failures.failed(router, 1)
    way.close()
    with captured_events() as logs:
        for _ in range(3):
            assert await reason_of(router, world.ref("two")) is Reason.MODEL_REFUSED
        await eventually(lambda: "usage_sums_kept" in [entry["event"] for entry in logs])
    way.is_open = True
    assert await failures.failed(router, 4) == [("two", "NO_FAILOVER", 4, 0, 4)]


async def test_Generate__requests_of_a_minute_are_counted_without_the_database(
    world: World, way: Way
) -> None:
    router = await world.router()
    await router.prepare(1, max_requests_per_minute=3)
    assert await reason_of(router, world.ref("one")) is None
    way.close()
    # A minute that ends meanwhile lets three more in.
    refused = [await reason_of(router, world.ref("one")) for _ in range(7)]
    assert Reason.BUDGET_EXCEEDED in refused
    assert world.provider.asked("one") <= 6


async def test_Generate__cooldowns_hold_while_the_database_is_away(world: World, way: Way) -> None:
    world.provider.on("one", BROKEN)
    world.provider.on("two", sse(*chat("from two")))
    router = await world.router()
    assert await reason_of(router, world.ref("two")) is None
    way.close()
    # A call that waited for a connection would exceed its deadline.
    answered = await router.generate(world.ref("one"), world.ref("two"), timeout=5)
    assert answered.text == "from two"
    answered = await router.generate(world.ref("one"), world.ref("two"), timeout=5)
    assert answered.verdicts[0][1] == "COOLING"


async def test_Generate__an_old_policy_is_not_trusted_while_the_database_is_away(
    world: World, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await world.router()
    assert await reason_of(router, world.ref("one")) is None
    way.close()
    assert await reason_of(router, world.ref("one")) is None
    monkeypatch.setattr(policy_cache, "_TRUSTED_SECONDS", 0.0)
    refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert (refused.reason, refused.facts["dependency"]) == (Reason.DEPENDENCY_UNAVAILABLE, "PostgreSQL")
    assert refused.retry_after_seconds
    assert world.provider.asked("one") == 2
    way.is_open = True
    monkeypatch.undo()

    async def answers() -> bool:
        return await reason_of(router, world.ref("one")) is None

    await eventually(answers)


async def test_Generate__a_tenant_of_unknown_limits_calls_no_model_while_the_database_is_away(
    world: World,
) -> None:
    world.provider.on("one", sse(*chat("one")))
    world.dsn = ServiceDsn(app="host=127.0.0.1 port=9 dbname=none user=none", owner="")
    router = await world.router(is_prepared=False)
    # A call that waited for a connection would exceed its deadline.
    answered = await router.generate(world.ref("one"), timeout=5)
    assert answered.refused.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert world.provider.asked("one") == 0
