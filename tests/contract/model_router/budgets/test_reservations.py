"""Concurrent calls exceed a limit of the spending by one of them at most, also after a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from aiohttp import web
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.model_router.fixtures import Answered, Router, World
from tests.support.model_router.process import open_router_process
from tests.support.model_router.provider import chat, sse
from tests.support.waiting import eventually

COST, LARGEST = 25, 1_100
"""A call reads 20 tokens and writes 5. It may read 1,000 and write 100."""


def priced(world: World) -> dict[str, Any]:
    """Return a configuration with a small model, and a price of a millionth for a token."""
    config = world.config()
    prices = {f"{sort}_micros_per_million_tokens": 10**6 for sort in ("input", "output")}
    config["models"][world.ref("one")] |= prices | {"context_window": 1000, "max_output": 100}
    return config


class Gate:
    """A provider that answers when the gate is open."""

    def __init__(self, world: World) -> None:
        self.opened = asyncio.Event()
        self._world, self._answer = world, sse(*chat("one"))
        world.provider.on("one", self)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        await self.opened.wait()
        return await self._answer(request)

    async def asked(self, count: int) -> None:
        """Wait until so many calls wait for an answer."""

        async def arrived() -> bool:
            return self._world.provider.asked("one") >= count

        await eventually(arrived)


@asynccontextmanager
async def calls(gate: Gate, routers: list[Router], model: str, count: int) -> AsyncIterator[list[Answered]]:
    """Make calls at once, wait until all of them wait or have been refused, and enter the block.

    The answers are complete at its end.
    """
    answers: list[Answered] = []

    async def one(number: int) -> None:
        answers.append(await routers[number % len(routers)].generate(model, strict=True, timeout=60))

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))

        async def settled() -> bool:
            return len(answers) + gate._world.provider.asked("one") >= count

        await eventually(settled)
        yield answers
        gate.opened.set()


async def test_Generate__calls_at_once_reserve_what_they_may_cost_over_replicas(world: World) -> None:
    gate, config = Gate(world), priced(world)
    first = await world.router(config)
    second = await world.router(config, tenant=first.tenant)
    for router in (first, second):
        await router.prepare(1, max_spend_micros_per_day=3 * LARGEST)
    async with calls(gate, [first, second], world.ref("one"), 32) as answers:
        refused = [one.refused for one in answers]
        assert len(refused) == 29
        assert {
            (error.reason, error.facts["budget"], error.facts["by_calls_in_progress"]) for error in refused
        } == {(Reason.BUDGET_EXCEEDED, "spend_per_day", "true")}
        assert {error.retry_after_seconds for error in refused} == {5.0}
    assert world.provider.asked("one") == 3
    # They cost less, so the next ones are admitted.
    for router in (first, second):
        assert (await router.generate(world.ref("one"), strict=True)).refusal is None


async def test_Generate__calls_at_once_exceed_a_small_limit_by_one_call(world: World) -> None:
    gate = Gate(world)
    router = await world.router(priced(world))
    await router.prepare(1, max_spend_micros_per_day=1)
    async with calls(gate, [router], world.ref("one"), 32):
        assert world.provider.asked("one") == 1
    refused = (await router.generate(world.ref("one"), strict=True)).refused
    assert refused.facts["by_calls_in_progress"] == "false"
    assert (refused.retry_after_seconds or 0) > 5.0


@pytest.mark.parametrize("ending", ["left", "failed"])
async def test_Generate__call_that_ends_without_an_answer_releases_its_reservation(
    world: World, ending: str
) -> None:
    gate = Gate(world)
    router = await world.router(priced(world))
    await router.prepare(1, max_spend_micros_per_day=2 * COST)
    if ending == "left":
        held = asyncio.create_task(router.generate(world.ref("one"), strict=True, timeout=3600))
        await gate.asked(1)
        assert (await router.generate(world.ref("one"), strict=True)).refused.facts[
            "by_calls_in_progress"
        ] == "true"
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    else:
        refusal = web.json_response({"error": {"message": "no"}}, status=400)

        async def refuse(_request: web.Request) -> web.StreamResponse:
            return refusal

        world.provider.on("one", refuse)
        failed = await router.generate(world.ref("one"), strict=True, timeout=3600)
        assert failed.refused.reason is not Reason.BUDGET_EXCEEDED
    gate.opened.set()
    world.provider.on("one", sse(*chat("one")))

    async def is_admitted() -> bool:
        refusal = (await router.generate(world.ref("one"), strict=True)).refusal
        return refusal is None or refusal.reason is not Reason.BUDGET_EXCEEDED

    await eventually(is_admitted)


async def test_Generate__reservation_of_a_replica_that_was_killed_expires(
    world: World, watchdog: Watchdog, fork_server: ForkServer
) -> None:
    gate = Gate(world)
    other = await world.router(priced(world))
    async with open_router_process(world, watchdog, fork_server, tables=priced(world)) as process:
        process.tenant = other.tenant
        await process.caller.send_policy(2, max_spend_micros_per_day=LARGEST)
        await other.send_policy(2, max_spend_micros_per_day=LARGEST)
        lost = asyncio.create_task(process.caller.generate(world.ref("one"), strict=True, timeout=60))
        await gate.asked(1)
        await process.kill()
        await asyncio.gather(lost, return_exceptions=True)
    gate.opened.set()
    refused = (await other.generate(world.ref("one"), strict=True)).refused
    assert refused.facts["by_calls_in_progress"] == "true"
    await _let_expire(world, other.tenant)
    assert (await other.generate(world.ref("one"), strict=True)).refusal is None


async def _let_expire(world: World, tenant: str) -> None:
    """Bring the time at which the reservations of the tenant expire to now."""
    async with await psycopg.AsyncConnection.connect(world.dsn.app) as connection:
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (tenant,))
        changed = await connection.execute(
            "update budget_reservations set expire_time = now() where expire_time < now() + interval '70 s'"
        )
        assert changed.rowcount == 1


async def test_Generate__calls_at_once_are_reserved_here_while_the_database_is_away(
    world: World,
) -> None:
    gate = Gate(world)
    router = await world.router(priced(world), database_timeout_seconds=0.5)
    await router.prepare(1, max_spend_micros_per_day=2 * LARGEST)

    async with (
        await psycopg.AsyncConnection.connect(world.dsn.owner) as connection,
        connection.transaction(),
    ):
        await connection.execute("lock table budget_periods in access exclusive mode")
        async with calls(gate, [router], world.ref("one"), 8):
            assert world.provider.asked("one") == 2
