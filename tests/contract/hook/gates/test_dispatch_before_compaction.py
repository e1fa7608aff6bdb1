"""DispatchBeforeCompaction, and the events of compactions."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh.hook.v1 import compaction_pb2 as compactions
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.transcript.v1.entry_pb2 import SUMMARY_METHOD_NORMAL
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CLOSED,
    COMPACTED,
    COMPACTION,
    CONTENT,
    DEAD_ENDPOINT,
    ENDED,
    INJECTION,
    OPEN,
    HookMesh,
    Tenant,
    ended,
    refused,
)

EVENT = compactions.BeforeCompactionEvent(
    session_id="ses_1",
    run_id="run_1",
    source_entry_count=12,
    source_token_count=3_400,
    first_source_seq=3,
    last_source_seq=19,
    previous_summary="hush",
)
BARE = compactions.BeforeCompactionEvent()
BARE.CopyFrom(EVENT)
BARE.ClearField("previous_summary")


@pytest.fixture
async def stored_events(
    databases: dict[str, ServiceDsn], tenant: Tenant
) -> Callable[[], Awaitable[list[observed.ObservedEvent]]]:
    """Return the tenant's events in the outbox."""

    async def read() -> list[observed.ObservedEvent]:
        async with await psycopg.AsyncConnection.connect(databases["hook"].app) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, false)", (tenant.tenant_id,))
            cursor = await connection.execute("select event from observed_events order by event_key")
            return [observed.ObservedEvent.FromString(bytes(row[0])) for row in await cursor.fetchall()]

    return read


def compact(instructions: str = "") -> compactions.CompactionDecision:
    return compactions.CompactionDecision(compact=compactions.Compact(instructions=instructions))


def keep_whole(reason: str) -> compactions.CompactionDecision:
    return compactions.CompactionDecision(keep_whole=compactions.KeepWhole(reason=reason))


def compacted(event_key: str, *, run_id: str = "", summary: str = "hush") -> observed.ObservedEvent:
    return observed.ObservedEvent(
        event_key=event_key,
        session_id="ses_1",
        run_id=run_id,
        after_compaction=observed.AfterCompactionEvent(
            entry_id="ent_9",
            source_entry_count=12,
            source_token_count=3_400,
            summary_token_count=90,
            method=SUMMARY_METHOD_NORMAL,
            model="small",
            summary=summary,
        ),
    )


async def ask(tenant: Tenant) -> tuple[compactions.CompactionDecision, list[str]]:
    answer: compactions.DispatchBeforeCompactionResponse = await tenant.as_transcript(
        "DispatchBeforeCompaction", compactions.DispatchBeforeCompactionRequest(event=EVENT)
    )
    return answer.decision, list(answer.decided_by)


async def publish(tenant: Tenant, *events: observed.ObservedEvent) -> int:
    answer: pb.PublishEventsResponse = await tenant.as_transcript(
        "PublishEvents", pb.PublishEventsRequest(events=events)
    )
    return answer.queued_count


async def test_DispatchBeforeCompaction__no_plugin(tenant: Tenant) -> None:
    assert await ask(tenant) == (compact(), [])
    assert await tenant.deliveries() == []


async def test_DispatchBeforeCompaction__instructions_are_joined_in_order(
    mesh: HookMesh, tenant: Tenant
) -> None:
    answers = {"low": compact("Keep the names."), "mute": compact(), "high": compact("Keep the numbers.")}
    plugins = {name: await mesh.plugin(answer) for name, answer in answers.items()}
    for priority, (name, plugin) in enumerate(plugins.items()):
        await tenant.register(name, plugin.endpoint, COMPACTION, priority=priority, grants=[INJECTION])
    assert await ask(tenant) == (compact("Keep the numbers.\n\nKeep the names."), ["high", "low"])
    assert await tenant.log() == [("high", "compact"), ("mute", "compact"), ("low", "compact")]


async def test_DispatchBeforeCompaction__plugins_below_a_refusal_are_not_called(
    mesh: HookMesh, tenant: Tenant
) -> None:
    unasked, keeps = await mesh.plugin(), await mesh.plugin(keep_whole("under audit"))
    instructs = await mesh.plugin(compact("Keep all."))
    for priority, (name, plugin) in enumerate(
        {"unasked": unasked, "keeps": keeps, "instructs": instructs}.items()
    ):
        await tenant.register(name, plugin.endpoint, COMPACTION, priority=priority, grants=[INJECTION])
    assert await ask(tenant) == (keep_whole("under audit"), ["keeps"])
    assert unasked.heard == []
    rows = await tenant.deliveries(decision="keep_whole")
    assert [(row.plugin, row.hook, row.session_id, row.run_id) for row in rows] == [
        ("keeps", COMPACTION, "ses_1", "run_1")
    ]


async def test_DispatchBeforeCompaction__only_plugins_with_access_see_the_previous_summary(
    mesh: HookMesh, tenant: Tenant
) -> None:
    sees, blind = await mesh.plugin(compact()), await mesh.plugin(compact())
    await tenant.register("sees", sees.endpoint, COMPACTION, grants=[CONTENT])
    await tenant.register("blind", blind.endpoint, COMPACTION, grants=[INJECTION])
    await ask(tenant)
    assert (sees.heard, blind.heard) == ([EVENT], [BARE])


async def test_DispatchBeforeCompaction__instructions_without_the_grant(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(compact("Keep my advertisement."))
    await tenant.register("a", plugin.endpoint, COMPACTION, grants=[CONTENT], policy=OPEN)
    assert await ask(tenant) == (compact(), [])
    await tenant.register("a", plugin.endpoint, COMPACTION, grants=[CONTENT], policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await ask(tenant)
    assert caught.value.facts == {
        "plugin": "a",
        "hook": "BEFORE_COMPACTION",
        "is_transient": "false",
    }
    rows = await tenant.deliveries()
    assert [decision_of(row) for row in rows] == ["failed", "failed"]
    assert rows[0].error == "malformed answer: decision.compact.instructions needs the grant PROMPT_INJECTION"
    plugin.says(keep_whole("no grant is needed for this"))
    assert (await ask(tenant))[1] == ["a"]


@pytest.mark.parametrize(
    "answer",
    [
        compactions.CompactionDecision(),
        keep_whole(""),
        keep_whole(" \n"),
        keep_whole("a\0b"),
        compact("x" * 4097),
        compact("a\0b"),
    ],
    ids=["nothing", "no-reason", "blank", "nul", "too-long", "nul-instructions"],
)
async def test_DispatchBeforeCompaction__a_malformed_answer_refuses(
    mesh: HookMesh, tenant: Tenant, answer: compactions.CompactionDecision
) -> None:
    plugin = await mesh.plugin(answer)
    registered = await tenant.register("a", plugin.endpoint, COMPACTION, grants=[INJECTION])
    assert registered.failure_policy == CLOSED
    with refused(Reason.PLUGIN_FAILED):
        await ask(tenant)


async def test_DispatchBeforeCompaction__bundled_plugins_need_no_grants(
    mesh: HookMesh, tmp_path: Path
) -> None:
    plugin = await mesh.plugin(compact("Keep the names."))
    file = tmp_path / "bundled.json"
    file.write_text(f'[{{"name": "ours", "endpoint": "{plugin.endpoint}", "hooks": ["BEFORE_COMPACTION"]}}]')
    tenant = mesh.tenant(await mesh.replica(bundled_plugins_file=file))
    assert await ask(tenant) == (compact("Keep the names."), ["ours"])
    assert plugin.heard == [EVENT]


async def test_DispatchBeforeCompaction__only_the_transcript_service_may_call(tenant: Tenant) -> None:
    request = compactions.DispatchBeforeCompactionRequest(event=EVENT)
    for caller in (tenant.as_client, tenant.as_session, tenant.as_run):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await caller("DispatchBeforeCompaction", request)


async def test_TestPlugin__compactions(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(compact())
    await tenant.register("a", plugin.endpoint, COMPACTION, COMPACTED)
    tried = await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="a"))
    assert [(row.hook, decision_of(row)) for row in tried.deliveries] == [
        (COMPACTION, "compact"),
        (COMPACTED, "told"),
    ]


async def test_ListActiveHooks__compactions(tenant: Tenant) -> None:
    await tenant.register("a", DEAD_ENDPOINT, COMPACTED, COMPACTION)
    answer = await tenant.as_run("ListActiveHooks", run_pb.ListActiveHooksRequest())
    assert list(answer.hooks) == [COMPACTION, COMPACTED]


async def test_PublishEvents__only_observers_with_access_receive_the_summary(
    mesh: HookMesh, tenant: Tenant, stored_events: Callable[[], Awaitable[list[observed.ObservedEvent]]]
) -> None:
    sees, blind = await mesh.plugin(), await mesh.plugin()
    await tenant.register("blind", blind.endpoint, COMPACTED)
    assert await publish(tenant, compacted("1")) == 1
    assert await stored_events() == [compacted("1", summary="")]
    await tenant.register("sees", sees.endpoint, COMPACTED, grants=[CONTENT])
    assert await publish(tenant, compacted("2", run_id="run_1")) == 2
    worker = await mesh.worker()
    while len(sees.heard) < 1 or len(blind.heard) < 2:
        assert await worker.deliveries.run_due()
    assert sees.heard == [compacted("2", run_id="run_1")]
    assert sorted(blind.heard, key=lambda event: event.event_key) == [
        compacted("1", summary=""),
        compacted("2", run_id="run_1", summary=""),
    ]
    assert sorted(await tenant.log()) == [("blind", "told"), ("blind", "told"), ("sees", "told")]
    assert await publish(tenant, compacted("1")) == 0


async def test_PublishEvents__each_caller_publishes_its_own_hooks(tenant: Tenant) -> None:
    await tenant.register("a", DEAD_ENDPOINT, ENDED, COMPACTED)
    of_run: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1"}
    output = observed.ObservedEvent(event_key="e", llm_output=observed.LlmOutputEvent(model="m"), **of_run)
    for caller, event, publisher in (
        (tenant.as_transcript, ended("e"), "the transcript service"),
        (tenant.as_transcript, output, "the transcript service"),
        (tenant.as_session, compacted("e"), "the session service"),
        (tenant.as_session, output, "the session service"),
        (tenant.as_run, compacted("e", run_id="run_1"), "a run"),
    ):
        with refused(Reason.INVALID_REQUEST) as caught:
            await caller("PublishEvents", pb.PublishEventsRequest(events=[event]))
        assert f"not an event that {publisher} may publish" in str(caught.value)
    assert await publish(tenant, compacted("e")) == 1
