"""PublishEvents, the deliveries of events, and retention."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.jobs.event_delivery import MAX_ATTEMPT_COUNT
from spawnmesh_hook.store import outbox, plugins
from spawnmesh_postgres.database import Connection, open_database
from spawnmesh_postgres.jobs import store as jobs
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CONTENT,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    HookMesh,
    Tenant,
    ended,
    refused,
)
from tests.support.hook.scripted_plugin import revise
from tests.support.waiting import eventually


@pytest.fixture
async def as_owner(databases: dict[str, ServiceDsn], tenant: Tenant) -> Callable[..., Awaitable[list[Any]]]:
    """Return a function that runs a statement in the tenant's scope."""

    async def execute(statement: str) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []

    return execute


async def test_PublishEvents__no_observer(tenant: Tenant) -> None:
    assert await tenant.ended() == 0
    assert await tenant.deliveries() == []


async def test_PublishEvents__the_caller_does_not_wait_for_observers(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", plugin.endpoint, ENDED)
    assert await tenant.ended() == 1
    assert plugin.heard == []
    await deliveries.run_due()
    assert plugin.heard == [ended("ended:1")]
    assert await tenant.log() == [("a", "told")]


async def test_observers_are_called_concurrently(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    both = asyncio.Barrier(2)

    async def meet(_event: Any) -> None:
        await both.wait()

    for name in ("a", "b"):
        plugin = await mesh.plugin()
        plugin.decide = meet
        await tenant.register(name, plugin.endpoint, ENDED)
    await tenant.ended()
    await deliveries.run_due()
    assert sorted(await tenant.log()) == [("a", "told"), ("b", "told")]


async def test_PublishEvents__a_known_key_adds_no_delivery(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    first, late = await mesh.plugin(), await mesh.plugin()
    await tenant.register("first", first.endpoint, ENDED)
    assert await tenant.publish(ended("e1"), ended("e2")) == 2
    await tenant.register("late", late.endpoint, ENDED)
    assert await tenant.ended("e1") == 0
    await deliveries.run_due()
    assert (len(first.heard), len(late.heard)) == (2, 0)


async def test_a_failing_observer_is_retried_and_finally_dead_lettered(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", DEAD_ENDPOINT, ENDED)
    await tenant.ended()
    await deliveries.run_due()
    assert await deliveries.run_due() == 0  # The entry is in its backoff.
    await as_owner("update jobs set due_time = now()")
    await deliveries.run_due()
    attempts = [(decision_of(row), row.attempt) for row in reversed(await tenant.deliveries())]
    assert attempts == [("failed", 1), ("failed", 2)]
    await as_owner(f"update jobs set due_time = now(), attempt_count = {MAX_ATTEMPT_COUNT - 1}")
    await deliveries.run_due()
    assert await as_owner("select dead_time is not null, attempt_count from jobs") == [
        (True, MAX_ATTEMPT_COUNT)
    ]
    await as_owner("update jobs set due_time = now()")
    await tenant.register("a", plugin.endpoint, ENDED)
    await deliveries.run_due()
    assert plugin.heard == []
    assert len(await tenant.deliveries(decision="dead")) == 1
    await as_owner("update jobs set dead_time = null, attempt_count = 0")  # An operator retries it.
    await deliveries.run_due()
    assert plugin.heard == [ended("ended:1")]
    assert await as_owner("select 1 from jobs") == []


async def test_an_observer_that_recovers_receives_the_event(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", DEAD_ENDPOINT, ENDED)
    await tenant.ended()
    await deliveries.run_due()
    await tenant.register("a", plugin.endpoint, ENDED)
    await as_owner("update jobs set due_time = now()")
    await deliveries.run_due()
    assert len(plugin.heard) == 1
    assert await as_owner("select 1 from jobs") == []


async def test_another_worker_takes_over_the_entry_of_a_killed_one(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    held, hold = asyncio.Event(), asyncio.Event()

    async def stay(_event: Any) -> None:
        held.set()
        await hold.wait()

    plugin.decide = stay
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.ended()
    killed = asyncio.create_task(deliveries.run_due())
    await held.wait()
    assert await (await mesh.worker()).deliveries.run_due() == 0
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    plugin.says(None)
    await as_owner("update jobs set due_time = now()")
    await (await mesh.worker()).deliveries.run_due()
    assert len(plugin.heard) == 2
    assert await as_owner("select 1 from jobs") == []


@pytest.mark.parametrize(("timeout_seconds", "longest_seconds"), [(5, 60), (600, 660)])
async def test_a_job_is_claimed_until_soon_after_the_timeout_of_its_observer(
    mesh: HookMesh,
    tenant: Tenant,
    deliveries: JobWorker,
    as_owner: Callable[..., Awaitable[list[Any]]],
    timeout_seconds: int,
    longest_seconds: int,
) -> None:
    plugin = await mesh.plugin()
    held = asyncio.Event()

    async def stay(_event: Any) -> None:
        held.set()
        await asyncio.Event().wait()

    plugin.decide = stay
    await tenant.register("a", plugin.endpoint, ENDED, timeout=Duration(seconds=timeout_seconds))
    await tenant.ended()
    working = asyncio.create_task(deliveries.run_due())
    await held.wait()
    [(seconds,)] = await as_owner("select extract(epoch from due_time - now()) from jobs")
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert timeout_seconds <= seconds <= longest_seconds


async def test_a_running_worker_delivers(mesh: HookMesh, tenant: Tenant, deliveries: JobWorker) -> None:
    plugin = await mesh.plugin()
    received = asyncio.Event()

    async def receive(_event: Any) -> None:
        received.set()

    plugin.decide = receive
    await tenant.register("a", plugin.endpoint, ENDED)
    worker = asyncio.create_task(deliveries.run_jobs_forever())
    await tenant.ended()
    async with asyncio.timeout(60):
        await received.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_slow_observer_does_not_delay_other_tenants(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    slow, quick, other = await mesh.plugin(), await mesh.plugin(), mesh.tenant(await mesh.replica())
    called, received = asyncio.Event(), asyncio.Event()

    async def take_time(_event: Any) -> None:
        called.set()
        await asyncio.Event().wait()

    async def receive(_event: Any) -> None:
        received.set()

    slow.decide, quick.decide = take_time, receive
    await tenant.register("slow", slow.endpoint, ENDED, timeout=Duration(seconds=600))
    await other.register("quick", quick.endpoint, ENDED)
    worker = asyncio.create_task((await mesh.worker(relay_concurrency=4)).deliveries.run_jobs_forever())
    await tenant.publish(*(ended(f"e{number}") for number in range(20)))
    async with asyncio.timeout(60):
        await called.wait()
    await other.ended()
    async with asyncio.timeout(60):
        await received.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_the_backlog_of_one_tenant_is_delivered(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin(None)
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.publish(*(ended(f"e{number}") for number in range(60)))
    worker = asyncio.create_task((await mesh.worker(relay_concurrency=4)).deliveries.run_jobs_forever())
    await eventually(lambda: len(plugin.heard) == 60)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_removed_plugin_receives_nothing_more(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.ended()
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="a"))
    assert await deliveries.run_due() == 0
    assert plugin.heard == []


async def test_content_without_pending_deliveries_is_cleared(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    for name, endpoint in (("quick", (await mesh.plugin(None)).endpoint), ("dead", DEAD_ENDPOINT)):
        await tenant.register(name, endpoint, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    payload = observed.LlmInputEvent(system_prompt="secret plans")
    published = [
        observed.ObservedEvent(event_key=key, session_id="ses_1", run_id="run_1", llm_input=payload)
        for key in ("1", "2")
    ]
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=published[:1]))
    await as_owner(f"update jobs set attempt_count = {MAX_ATTEMPT_COUNT - 1}")
    await deliveries.run_due()
    assert await as_owner("select key, dead_time is not null from jobs") == [("dead run:run_1:1", True)]
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=published[1:]))
    await deliveries.run_due()
    kept = "select event_key from observed_events where event <> '' order by event_key"
    assert await as_owner(kept) == [("run:run_1:1",), ("run:run_1:2",)], "a dead job may be retried"
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="dead"))
    assert await as_owner("select event_key from observed_events where event <> ''") == []


async def _complete(connection: Connection, tenant_id: str, plugin: str) -> None:
    await jobs.delete(connection, tenant_id, outbox.DELIVER_EVENT, f"{plugin} run:run_1:1")
    await outbox.clear_delivered(connection, tenant_id, ["run:run_1:1"])


async def _remove_plugin(connection: Connection, tenant_id: str, plugin: str) -> None:
    await plugins.delete_plugin(connection, tenant_id, plugin)
    await outbox.delete_deliveries_of_plugin(connection, tenant_id, plugin)


@pytest.mark.parametrize("second", [_complete, _remove_plugin])
@pytest.mark.parametrize("first", [_complete, _remove_plugin])
async def test_content_is_cleared_if_the_last_two_deliveries_end_concurrently(
    tenant: Tenant,
    databases: dict[str, ServiceDsn],
    as_owner: Callable[..., Awaitable[list[Any]]],
    first: Callable[[Connection, str, str], Awaitable[None]],
    second: Callable[[Connection, str, str], Awaitable[None]],
) -> None:
    for name in ("a", "b"):
        await tenant.register(name, DEAD_ENDPOINT, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    payload = observed.LlmInputEvent(system_prompt="secret plans")
    published = observed.ObservedEvent(event_key="1", session_id="ses_1", run_id="run_1", llm_input=payload)
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[published]))
    waits = "select pid from pg_stat_activity where application_name = 'hearing' and wait_event_type = 'Lock'"
    async with open_database(databases["hook"].app, name="hearing", max_connections=2) as database:

        async def hear_too() -> None:
            async with database.transaction(tenant.tenant_id) as connection:
                await second(connection, tenant.tenant_id, "b")

        async with database.transaction(tenant.tenant_id) as connection:
            await first(connection, tenant.tenant_id, "a")
            hearing = asyncio.create_task(hear_too())
            async with asyncio.timeout(60):
                while not hearing.done() and not await as_owner(waits):
                    await asyncio.sleep(0.01)
        await hearing
    assert await as_owner("select event from observed_events") == [(b"",)]


async def test_content_is_stored_and_delivered_only_for_observers_with_access(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    sees, blind = await mesh.plugin(), await mesh.plugin()
    payload = content.Message(
        role=content.ROLE_USER, content=[content.ContentBlock(text=content.Text(text="hush"))]
    )
    full = observed.LlmInputEvent(models=["m"], message_count=1, system_prompt="hush", messages=[payload])
    bare = observed.LlmInputEvent(models=["m"], message_count=1)
    run: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1"}
    await tenant.register("blind", blind.endpoint, events.HOOK_KIND_LLM_INPUT)
    request = pb.PublishEventsRequest(events=[observed.ObservedEvent(event_key="1", llm_input=full, **run)])
    await tenant.as_run("PublishEvents", request)
    [(stored,)] = await as_owner("select event from observed_events")
    assert b"hush" not in bytes(stored)
    await tenant.register("sees", sees.endpoint, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    request.events[0].event_key = "2"
    await tenant.as_run("PublishEvents", request)
    await deliveries.run_due()
    assert [event.llm_input for event in sees.heard] == [full]
    assert [event.llm_input for event in blind.heard] == [bare, bare]


async def test_PublishEvents__another_tenants_event_key(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    other = mesh.tenant(await mesh.replica())
    for one in (tenant, other):
        await one.register("a", plugin.endpoint, ENDED)
        assert await one.ended("e1") == 1


@pytest.mark.parametrize("event", [ended(""), observed.ObservedEvent(event_key="e", session_id="ses_1")])
async def test_PublishEvents__no_key_or_no_event(tenant: Tenant, event: observed.ObservedEvent) -> None:
    with refused(Reason.INVALID_REQUEST):
        await tenant.publish(event)


async def test_PublishEvents__a_run_publishes_its_own_models_and_tools_only(tenant: Tenant) -> None:
    llm = observed.LlmOutputEvent(model="m")
    for wrong, reason in (
        (
            observed.ObservedEvent(event_key="e", session_id="ses_2", run_id="run_1", llm_output=llm),
            Reason.NOT_FOUND,
        ),
        (
            observed.ObservedEvent(event_key="e", session_id="ses_1", run_id="run_2", llm_output=llm),
            Reason.NOT_FOUND,
        ),
        (ended("e"), Reason.INVALID_REQUEST),
    ):
        with refused(reason):
            await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[wrong]))


async def test_rows_past_their_retention_are_deleted(
    mesh: HookMesh, tenant: Tenant, deliveries: JobWorker, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin(revise("no"))
    await tenant.register("a", plugin.endpoint, FINALIZE, ENDED)
    await tenant.draft("old")
    await as_owner("update deliveries set start_time = now() - interval '31 days'")
    await tenant.draft("new")
    await (await mesh.worker()).pruner.prune()
    assert len(await tenant.deliveries()) == 1
