"""Telling observers from the outbox, and the log of all calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook import outbox_store, store
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.telling import MAX_ATTEMPT_COUNT
from spawnmesh_hook.outbox_store import Telling
from spawnmesh_hook.tellers import Tellers
from spawnmesh_postgres.database import Connection, open_database

from tests.contract.hook_fixtures import (
    ALLOW,
    CONTENT,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    SPAWN,
    HookMesh,
    Tenant,
    ended,
    events,
    open_mesh,
    refused,
    revise,
)


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    return mesh.tenant(await mesh.replica())


@pytest.fixture
async def tellers(mesh: HookMesh) -> Tellers:
    return await mesh.tellers()


@pytest.fixture
async def as_owner(databases: dict[str, ServiceDsn], tenant: Tenant) -> Callable[..., Awaitable[list[Any]]]:
    """Runs a statement in the tenant's scope."""

    async def execute(statement: str) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
            cursor = await connection.execute(statement)  # type: ignore[arg-type]  # a statement of the test's own
            return await cursor.fetchall() if cursor.description else []

    return execute


async def test_PublishEvents__nobody_to_tell(tenant: Tenant) -> None:
    assert await tenant.ended() == 0
    assert await tenant.deliveries() == []


async def test_PublishEvents__the_caller_waits_for_no_observer(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", plugin.endpoint, ENDED)
    assert await tenant.ended() == 1
    assert plugin.heard == []
    await tellers.tell_due()
    assert plugin.heard == [ended("ended:1")]
    assert await tenant.log() == [("a", "told")]


async def test_observers_are_told_side_by_side(mesh: HookMesh, tenant: Tenant, tellers: Tellers) -> None:
    both = asyncio.Barrier(2)

    async def meet(_event: Any) -> None:
        await both.wait()

    for name in ("a", "b"):
        plugin = await mesh.plugin()
        plugin.decide = meet
        await tenant.register(name, plugin.endpoint, ENDED)
    await tenant.ended()
    await tellers.tell_due()
    assert sorted(await tenant.log()) == [("a", "told"), ("b", "told")]


async def test_PublishEvents__a_known_key_tells_nobody_again(mesh: HookMesh, tenant: Tenant, tellers: Tellers) -> None:
    first, late = await mesh.plugin(), await mesh.plugin()
    await tenant.register("first", first.endpoint, ENDED)
    assert await tenant.publish(ended("e1"), ended("e2")) == 2
    await tenant.register("late", late.endpoint, ENDED)
    assert await tenant.ended("e1") == 0
    await tellers.tell_due()
    assert (len(first.heard), len(late.heard)) == (2, 0)


async def test_an_observer_that_fails_is_told_again_and_at_last_given_up(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", DEAD_ENDPOINT, ENDED)
    await tenant.ended()
    await tellers.tell_due()
    assert await tellers.tell_due() == 0  # not before its pause is over
    await as_owner("update tellings set due_time = now()")
    await tellers.tell_due()
    attempts = [(row.decision, row.attempt) for row in reversed(await tenant.deliveries())]
    assert attempts == [("failed", 1), ("failed", 2)]
    await as_owner(f"update tellings set due_time = now(), attempt_count = {MAX_ATTEMPT_COUNT - 1}")
    await tellers.tell_due()
    assert await as_owner("select state, attempt_count from tellings") == [("DEAD", MAX_ATTEMPT_COUNT)]
    await as_owner("update tellings set due_time = now()")
    await tenant.register("a", plugin.endpoint, ENDED)
    await tellers.tell_due()
    assert plugin.heard == []
    assert len(await tenant.deliveries(decision="dead")) == 1


async def test_an_observer_that_is_back_hears(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", DEAD_ENDPOINT, ENDED)
    await tenant.ended()
    await tellers.tell_due()
    await tenant.register("a", plugin.endpoint, ENDED)
    await as_owner("update tellings set due_time = now()")
    await tellers.tell_due()
    assert len(plugin.heard) == 1
    assert await as_owner("select 1 from tellings") == []


async def test_a_worker_that_was_killed_leaves_it_to_the_next(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin()
    held, hold = asyncio.Event(), asyncio.Event()

    async def stay(_event: Any) -> None:
        held.set()
        await hold.wait()

    plugin.decide = stay
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.ended()
    killed = asyncio.create_task(tellers.tell_due())
    await held.wait()
    assert await (await mesh.tellers()).tell_due() == 0
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    plugin.says(None)
    await as_owner("update tellings set due_time = now()")
    await (await mesh.tellers()).tell_due()
    assert len(plugin.heard) == 2
    assert await as_owner("select 1 from tellings") == []


async def test_a_running_worker_tells_at_once(mesh: HookMesh, tenant: Tenant, tellers: Tellers) -> None:
    plugin = await mesh.plugin()
    heard = asyncio.Event()

    async def hear(_event: Any) -> None:
        heard.set()

    plugin.decide = hear
    await tenant.register("a", plugin.endpoint, ENDED)
    worker = asyncio.create_task(tellers.tell_for_ever())
    await tenant.ended()
    async with asyncio.timeout(4):
        await heard.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_an_observer_that_takes_its_time_keeps_no_other_tenants_from_hearing(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    slow, quick, other = await mesh.plugin(), await mesh.plugin(), mesh.tenant(await mesh.replica())
    asked, heard = asyncio.Event(), asyncio.Event()

    async def take_time(_event: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async def hear(_event: Any) -> None:
        heard.set()

    slow.decide, quick.decide = take_time, hear
    await tenant.register("slow", slow.endpoint, ENDED, timeout=Duration(seconds=600))
    await other.register("quick", quick.endpoint, ENDED)
    worker = asyncio.create_task((await mesh.tellers(telling_concurrency=4)).tell_for_ever())
    await tenant.publish(*(ended(f"e{number}") for number in range(20)))
    async with asyncio.timeout(4):
        await asked.wait()
    await other.ended()
    async with asyncio.timeout(4):
        await heard.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_what_one_tenant_has_to_tell_is_told_without_pauses(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    plugin = await mesh.plugin(None)
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.publish(*(ended(f"e{number}") for number in range(60)))
    worker = asyncio.create_task((await mesh.tellers(telling_concurrency=4)).tell_for_ever())
    async with asyncio.timeout(4):  # Less than one pause.
        while len(plugin.heard) < 60:
            await asyncio.sleep(0.01)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_removed_plugin_hears_nothing_more(mesh: HookMesh, tenant: Tenant, tellers: Tellers) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.ended()
    await tenant.as_client("RemovePlugin", pb.RemovePluginRequest(name="a"))
    assert await tellers.tell_due() == 0
    assert plugin.heard == []


async def test_what_nobody_hears_any_more_is_not_kept(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    for name, endpoint in (("quick", (await mesh.plugin(None)).endpoint), ("dead", DEAD_ENDPOINT)):
        await tenant.register(name, endpoint, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    said = observed.LlmInputEvent(system_prompt="secret plans")
    told = [
        observed.ObservedEvent(event_key=key, session_id="ses_1", run_id="run_1", llm_input=said) for key in ("1", "2")
    ]
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=told[:1]))
    await as_owner(f"update tellings set attempt_count = {MAX_ATTEMPT_COUNT - 1}")
    await tellers.tell_due()
    assert await as_owner("select plugin, state from tellings") == [("dead", "DEAD")]
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=told[1:]))
    await tellers.tell_due()
    assert await as_owner("select event_key from observed_events where event <> ''") == [("run:run_1:2",)]
    await tenant.as_client("RemovePlugin", pb.RemovePluginRequest(name="dead"))
    assert await as_owner("select event_key from observed_events where event <> ''") == []


async def _told(connection: Connection, tenant_id: str, plugin: str) -> None:
    await outbox_store.told(connection, Telling(tenant_id, "run:run_1:1", plugin, 1, HookKind.LLM_INPUT, b"", ""))


async def _buried(connection: Connection, tenant_id: str, plugin: str) -> None:
    await outbox_store.bury(connection, Telling(tenant_id, "run:run_1:1", plugin, 1, HookKind.LLM_INPUT, b"", ""))


@pytest.mark.parametrize("second", [_told, _buried, store.remove_plugin])
@pytest.mark.parametrize("first", [_told, _buried, store.remove_plugin])
async def test_what_the_last_two_hear_at_the_same_time_is_not_kept(
    tenant: Tenant,
    databases: dict[str, ServiceDsn],
    as_owner: Callable[..., Awaitable[list[Any]]],
    first: Callable[[Connection, str, str], Awaitable[None]],
    second: Callable[[Connection, str, str], Awaitable[None]],
) -> None:
    for name in ("a", "b"):
        await tenant.register(name, DEAD_ENDPOINT, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    said = observed.LlmInputEvent(system_prompt="secret plans")
    told = observed.ObservedEvent(event_key="1", session_id="ses_1", run_id="run_1", llm_input=said)
    await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[told]))
    waits = "select pid from pg_stat_activity where application_name = 'hearing' and wait_event_type = 'Lock'"
    async with open_database(databases["hook"].app, name="hearing", max_connections=2) as database:

        async def hear_too() -> None:
            async with database.transaction(tenant.tenant_id) as connection:
                await second(connection, tenant.tenant_id, "b")

        async with database.transaction(tenant.tenant_id) as connection:
            await first(connection, tenant.tenant_id, "a")
            hearing = asyncio.create_task(hear_too())
            async with asyncio.timeout(10):
                while not hearing.done() and not await as_owner(waits):
                    await asyncio.sleep(0.01)
        await hearing
    assert await as_owner("select event from observed_events") == [(b"",)]


async def test_content_is_for_those_with_access_and_kept_for_nobody_else(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    sees, blind = await mesh.plugin(), await mesh.plugin()
    said = content.Message(role=content.ROLE_USER, content=[content.ContentBlock(text=content.Text(text="hush"))])
    full = observed.LlmInputEvent(models=["m"], message_count=1, system_prompt="hush", messages=[said])
    bare = observed.LlmInputEvent(models=["m"], message_count=1)
    run: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1"}
    await tenant.register("blind", blind.endpoint, events.HOOK_KIND_LLM_INPUT)
    request = pb.PublishEventsRequest(events=[observed.ObservedEvent(event_key="1", llm_input=full, **run)])
    await tenant.as_run("PublishEvents", request)
    [(kept,)] = await as_owner("select event from observed_events")
    assert b"hush" not in bytes(kept)
    await tenant.register("sees", sees.endpoint, events.HOOK_KIND_LLM_INPUT, grants=[CONTENT])
    request.events[0].event_key = "2"
    await tenant.as_run("PublishEvents", request)
    await tellers.tell_due()
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


async def test_PublishEvents__a_run_tells_of_its_own_models_and_tools_only(tenant: Tenant) -> None:
    llm = observed.LlmOutputEvent(model="m")
    for wrong, reason in (
        (observed.ObservedEvent(event_key="e", session_id="ses_2", run_id="run_1", llm_output=llm), Reason.NOT_FOUND),
        (observed.ObservedEvent(event_key="e", session_id="ses_1", run_id="run_2", llm_output=llm), Reason.NOT_FOUND),
        (ended("e"), Reason.INVALID_REQUEST),
    ):
        with refused(reason):
            await tenant.as_run("PublishEvents", pb.PublishEventsRequest(events=[wrong]))


async def test_ListDeliveries__newest_first_by_run_plugin_decision_and_time(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers
) -> None:
    gate, reviewer, observer = await mesh.plugin(ALLOW), await mesh.plugin(revise("no")), await mesh.plugin()
    await tenant.register("gate", gate.endpoint, SPAWN)
    await tenant.register("reviewer", reviewer.endpoint, FINALIZE)
    await tenant.register("observer", observer.endpoint, ENDED)
    await tenant.spawn(session_id="ses_1")
    await tenant.draft("k", session_id="ses_1", run_id="run_1")
    await tenant.ended(session_id="ses_2", run_id="run_2")
    await tellers.tell_due()
    rows = await tenant.deliveries()
    assert [
        (row.plugin, row.hook, row.session_id, row.run_id, row.decision, row.error, row.attempt) for row in rows
    ] == [
        ("observer", ENDED, "ses_2", "run_2", "told", "", 1),
        ("reviewer", FINALIZE, "ses_1", "run_1", "revise", "", 1),
        ("gate", SPAWN, "ses_1", "", "allow", "", 1),
    ]
    starts = [row.start_time.ToNanoseconds() for row in rows]
    assert starts == sorted(starts, reverse=True)
    assert all(row.latency.ToNanoseconds() > 0 for row in rows)

    async def names(**conditions: Any) -> list[str]:
        return [row.plugin for row in await tenant.deliveries(**conditions)]

    assert await names(session_id="ses_1") == ["reviewer", "gate"]
    assert await names(run_id="run_1") == ["reviewer"]
    assert await names(plugin="gate") == ["gate"]
    assert await names(decision="told") == ["observer"]
    assert await names(start_time=rows[1].start_time) == ["observer", "reviewer"]
    assert await names(end_time=rows[1].start_time) == ["gate"]
    assert await names(session_id="ses_3") == []
    with refused(Reason.INVALID_REQUEST):
        await names(end_time=Timestamp(seconds=10**15))


async def test_ListDeliveries__page_by_page(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    for number in range(5):
        await tenant.spawn(session_id=f"ses_{number}")
    seen, token = [], ""
    while True:
        page = await tenant.as_client("ListDeliveries", pb.ListDeliveriesRequest(page_size=2, page_token=token))
        seen += [row.session_id for row in page.deliveries]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"ses_{number}" for number in reversed(range(5))]
    with refused(Reason.INVALID_REQUEST):
        await tenant.as_client("ListDeliveries", pb.ListDeliveriesRequest(page_token="bm8="))


async def test_what_is_past_its_time_is_deleted(
    mesh: HookMesh, tenant: Tenant, tellers: Tellers, as_owner: Callable[..., Awaitable[list[Any]]]
) -> None:
    plugin = await mesh.plugin(revise("no"))
    await tenant.register("a", plugin.endpoint, FINALIZE, ENDED)
    await tenant.draft("old")
    await as_owner("update deliveries set start_time = now() - interval '31 days'")
    await tenant.draft("new")
    await tellers.prune()
    assert len(await tenant.deliveries()) == 1
