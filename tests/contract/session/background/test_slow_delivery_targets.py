"""Slow delivery_target plugins delay no other work of the worker and no other tenant."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetDecision
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_DELIVERY_TARGET, HOOK_KIND_SUBAGENT_ENDED
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import work
from spawnmesh_session.settings import SessionSettings

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import another
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once
from tests.support.waiting import eventually

PLACES = 4
MANY = 5 * PLACES


@dataclass
class Places(HookHandlerServiceServicer):
    """A plugin that names the target once it may, and counts its calls."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    asked: int = 0
    now: int = 0
    most: int = 0

    async def HandleDeliveryTarget(self, _request: Any, context: Any) -> Any:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.fails:
                await context.abort(grpc.StatusCode.INTERNAL, "it does not know")
            await self.may_answer.wait()
        finally:
            self.now -= 1
        return handler_pb.HandleDeliveryTargetResponse(decision=DeliveryTargetDecision(target="chat:a"))


@asynccontextmanager
async def asking(mesh: Mesh, hook: str, places: Places) -> AsyncIterator[None]:
    """Register the plugin and an observer for the tenant."""
    server = grpc.aio.server()
    add_HookHandlerServiceServicer_to_server(places, server)
    endpoint = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    closed = hook_pb.FAILURE_POLICY_CLOSED
    plugins = [
        hook_pb.Plugin(
            name="places",
            endpoint=endpoint,
            hooks=[HOOK_KIND_DELIVERY_TARGET],
            failure_policy=closed,
            timeout=Duration(seconds=600),
        ),
        hook_pb.Plugin(name="observer", endpoint="grpc://127.0.0.1:1", hooks=[HOOK_KIND_SUBAGENT_ENDED]),
    ]
    try:
        async with caller_at(hook, "hook") as peer:
            stub: Any = HookServiceStub(peer.channel)
            with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
                for plugin in plugins:
                    request = hook_pb.UpdatePluginRequest(
                        allow_missing=True, plugin=plugin, allow_unreachable=True
                    )
                    await peer.unary(stub.UpdatePlugin, request, timeout_seconds=60)
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def working(settings: SessionSettings) -> AsyncIterator[None]:
    """The worker works while the block lasts."""
    async with start_process("session", settings) as process:
        worker = asyncio.create_task(work(process, settings))
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker


async def killed(mesh: Mesh, count: int = 1, **fields: Any) -> list[str]:
    session_ids = [(await mesh.spawn(**fields)).session_id for _ in range(count)]
    for session_id in session_ids:
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))
    return session_ids


@pytest.fixture
async def settings(mesh: Mesh, remains: Remains) -> AsyncIterator[SessionSettings]:
    """A worker with few places, and a queue without events of other tests."""
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    yield mesh.settings.model_copy(update={"worker_concurrency": PLACES, "drain_grace_seconds": 1.0})
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute("delete from session.jobs where kind = 'publish_run_end'")


def has_no_files(mesh: Mesh, remains: Remains) -> Callable[[], Awaitable[bool]]:
    async def has_none() -> bool:
        return (await remains.of(mesh.tenant))["files"] == 0

    return has_none


async def targets(mesh: Mesh, remains: Remains) -> list[str]:
    """Return the delivery targets of the tenant's published ends."""
    query = "select event from hook.observed_events where tenant_id = %s and hook = 'SUBAGENT_ENDED'"
    async with await psycopg.AsyncConnection.connect(remains.dsn) as link:
        rows = await (await link.execute(query, (mesh.tenant,))).fetchall()
    return [ObservedEvent.FromString(row[0]).subagent_ended.delivery_target for row in rows]


async def test_files_of_other_tenants_are_released_and_their_events_published(
    mesh: Mesh, peers: dict[str, str], remains: Remains, settings: SessionSettings
) -> None:
    slow, quick = another(mesh), another(mesh)
    for tenant in (slow, quick):
        await tenant.create_tenant()
    slow_places, quick_places = Places(), Places()
    quick_places.may_answer.set()
    async with asking(slow, peers["hook"], slow_places), asking(quick, peers["hook"], quick_places):
        await killed(slow, MANY)
        async with working(settings):
            await eventually(lambda: _is(slow_places.now == PLACES // 2))
            await killed(quick, attachments=[attachment()])
            await eventually(has_no_files(quick, remains))

            async def is_published() -> bool:
                return await targets(quick, remains) == ["chat:a"]

            await eventually(is_published)
            assert slow_places.most == PLACES // 2
            slow_places.may_answer.set()

            async def all_published() -> bool:
                return await targets(slow, remains) == ["chat:a"] * MANY

            await eventually(all_published)
    assert slow_places.asked == MANY


async def test_a_stopped_worker_returns_the_events_that_it_was_delivering(
    mesh: Mesh, peers: dict[str, str], remains: Remains, settings: SessionSettings
) -> None:
    own = another(mesh)
    await own.create_tenant()
    places = Places()
    async with asking(own, peers["hook"], places):
        await killed(own)
        async with working(settings):
            await eventually(lambda: _is(places.now == 1))
        assert (
            await remains.count(
                own.tenant, "session.jobs where kind = 'publish_run_end' and claim_id is null"
            )
            == 1
        )
        places.may_answer.set()
        async with working(settings):

            async def is_published() -> bool:
                return await targets(own, remains) == ["chat:a"]

            await eventually(is_published)


async def test_an_event_is_delivered_without_target_after_three_failures_of_plugins(
    mesh: Mesh, peers: dict[str, str], remains: Remains, settings: SessionSettings
) -> None:
    own = another(mesh)
    await own.create_tenant()
    async with asking(own, peers["hook"], Places(fails=True)), working(settings):
        await killed(own)

        async def is_published() -> bool:
            return await targets(own, remains) == [""]

        async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
            for failures in (1, 2):

                async def has_failed(count: int = failures) -> bool:
                    query = (
                        "select arguments -> 'plugin_failures', last_error from session.jobs"
                        " where kind = 'publish_run_end' and claim_id is null and tenant_id = %s"
                    )
                    row = await (await link.execute(query, (own.tenant,))).fetchone()
                    return row is not None and row[0] == count and "PLUGIN_FAILED" in row[1]

                await eventually(has_failed)
                assert await targets(own, remains) == []
                query = (
                    "update session.jobs set due_time = now()"
                    " where kind = 'publish_run_end' and tenant_id = %s"
                )
                await link.execute(query, (own.tenant,))
        await eventually(is_published)


async def _is(condition: bool) -> bool:
    return condition
