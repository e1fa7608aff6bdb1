"""Webhooks that are changed, paused, replayed and deleted while two workers send their messages."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.hook.fixtures import HookMesh, Tenant
from tests.support.hook.webhook_receiver import (
    Execute,
    Serve,
    WebhookReceiver,
    delete,
    log_of,
    pause,
    put_webhook,
    replay,
    resume,
    rotate,
    run_ended,
    send_test,
)

NAMES = ("a", "b", "c")
CALLERS, CALLS = 6, 30
EVER = Timestamp()
ANSWERS = [204] * 6 + [500, 503, 400, 410]
LOST = """
select d.webhook_id, d.event_id from webhook_deliveries d join webhooks w using (tenant_id, webhook_id)
where d.state = 'PENDING' and not w.paused and not exists (
    select from jobs j
    where j.kind = 'deliver_webhook' and j.key = d.webhook_id and j.dead_time is null
)"""
"""Messages that are never sent, unless something wakes their webhook."""
STATES = """
select distinct d.state from webhook_deliveries d join webhooks w using (tenant_id, webhook_id)
where d.event_type <> 'webhook.test'"""
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


class ErraticReceiver(WebhookReceiver):
    """Answers at random, until it is repaired."""

    def __init__(self, random: Random) -> None:
        super().__init__(respond=self._answer)
        self._random = random

    async def _answer(self, _request: web.Request) -> web.StreamResponse:
        headers = {"Retry-After": "1"} if self._random.random() < 0.2 else None
        return web.Response(status=self._random.choice(ANSWERS), headers=headers)


class Callers:
    """Clients that change the webhooks at random."""

    def __init__(self, tenant: Tenant, execute: Execute, url: str, random: Random) -> None:
        self._tenant, self._execute, self._url, self._random = tenant, execute, url, random
        self._count = 0

    async def call(self) -> None:
        """Make the calls of one client. No webhook may be there, but no call fails otherwise."""
        for _ in range(CALLS):
            try:
                await self._random.choice(self._calls)(self._random.choice(NAMES))
            except MeshError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
            assert await self._execute(LOST) == []

    @property
    def _calls(self) -> list[Callable[[str], Awaitable[object]]]:
        often = [self._publish, self._publish, self._resume, self._replay, self._replay_failed, self._forget]
        return [*often, self._pause, self._update, self._rotate, self._test, self._delete]

    def _next(self) -> int:
        self._count += 1
        return self._count

    async def _publish(self, _name: str) -> None:
        first = 10 * self._next()
        await self._tenant.publish(*(run_ended(number) for number in range(first, first + 6)))

    async def _pause(self, name: str) -> None:
        await pause(self._tenant, name)

    async def _resume(self, name: str) -> None:
        await resume(self._tenant, name)

    async def _replay(self, name: str) -> None:
        ids = [one.event_id for one in await log_of(self._tenant, name, page_size=20)]
        self._random.shuffle(ids)
        if ids:
            await replay(self._tenant, *ids, name=name)

    async def _replay_failed(self, name: str) -> None:
        await replay(self._tenant, name=name, failed_since=EVER)

    async def _update(self, name: str) -> None:
        seconds = self._random.randint(5, 30)
        await put_webhook(self._tenant, self._url, name=name, timeout=Duration(seconds=seconds))

    async def _rotate(self, name: str) -> None:
        await rotate(self._tenant, f"r{self._next()}", name=name)

    async def _test(self, name: str) -> None:
        await send_test(self._tenant, name)

    async def _delete(self, name: str) -> None:
        await delete(self._tenant, name)
        await put_webhook(self._tenant, self._url, name=name)

    async def _forget(self, _name: str) -> None:
        """Let pauses pass, and the day of some messages."""
        await self._execute("update webhooks set retry_time = now() where retry_time is not null")
        await self._execute(
            "update webhook_deliveries set queue_time = now() - interval '2 days', attempt_time = now() "
            "where state = 'PENDING' and random() < 0.2"
        )
        await self._execute("update jobs set due_time = now() where claim_id is null")


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_message_is_lost_and_no_call_waits_for_another_in_a_circle(
    mesh: HookMesh, tenant: Tenant, certificate: Path, serve: Serve, execute: Execute, seed: int
) -> None:
    random = Random(seed)
    receiver = ErraticReceiver(random)
    url = await serve(receiver)
    for name in NAMES:
        await put_webhook(tenant, url, name=name)
    [(deadlocks,)] = await execute(DEADLOCKS)
    workers = [(await mesh.worker(webhook_ca_file=certificate)).deliveries for _ in range(2)]
    loops = [asyncio.create_task(worker.run_jobs_forever()) for worker in workers]
    callers = Callers(tenant, execute, url, random)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(callers.call())
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
    assert await execute(LOST) == []
    assert len(receiver.bodies) > CALLS, "the workers have sent something meanwhile"
    receiver.respond = None
    for name in NAMES:
        await replay(tenant, name=name, failed_since=EVER)
        await resume(tenant, name)
    await tenant.publish(run_ended(10_000))  # A webhook may have been created anew a moment ago.
    await execute("update jobs set due_time = now()")  # Also what the loops had just claimed.
    await asyncio.gather(*(worker.run_due() for worker in workers))
    assert await execute(STATES) == [("DELIVERED",)]
    assert await execute("select 1 from jobs") == []
    assert await execute(DEADLOCKS) == [(deadlocks,)]
