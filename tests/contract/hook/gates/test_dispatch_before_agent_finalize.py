"""DispatchBeforeAgentFinalize: decide whether a draft is final."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.revision_pb2 import REVISION_CAP_RUN, CappedRevision
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.store.decisions import CLAIM_ENDED_CHANNEL, DraftKey, claim_draft
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.listener import open_listener

from tests.support.hook.fixtures import CONTENT, FINALIZE, OPEN, HookMesh, Tenant, hook_replica, refused
from tests.support.hook.scripted_plugin import CONTINUE, ScriptedPlugin, finalize, revise


class Gate:
    """Delays a plugin's answer until `open` is set."""

    def __init__(self, plugin: ScriptedPlugin, answer: Any) -> None:
        self._called = asyncio.Event()
        self.open = asyncio.Event()
        self._answer = answer
        plugin.decide = self._decide

    async def called(self) -> None:
        """Wait until the plugin is called."""
        async with asyncio.timeout(60):
            await self._called.wait()

    async def _decide(self, _event: Any) -> Any:
        self._called.set()
        await self.open.wait()
        return self._answer


async def test_DispatchBeforeAgentFinalize__no_plugin(tenant: Tenant) -> None:
    answer = await tenant.draft("k")
    assert answer == pb.DispatchBeforeAgentFinalizeResponse(decision=CONTINUE, max_revision_count=3)
    assert await tenant.deliveries() == []


async def test_DispatchBeforeAgentFinalize__a_continue_is_stored_too(mesh: HookMesh, tenant: Tenant) -> None:
    early, late = await mesh.plugin(CONTINUE), await mesh.plugin(revise("late"))
    await tenant.register("early", early.endpoint, FINALIZE)
    first = await tenant.draft("k")
    await tenant.register("late", late.endpoint, FINALIZE)
    assert await tenant.draft("k") == first
    assert late.heard == []


@pytest.mark.parametrize("gone", ["DeletePlugin", "PausePlugin"])
async def test_DispatchBeforeAgentFinalize__a_stored_decision_outlives_its_plugin(
    mesh: HookMesh, tenant: Tenant, gone: str
) -> None:
    other = tenant.on(await mesh.replica())
    assert (
        await other.draft("before")
    ).decision == CONTINUE  # This replica now caches that there are neither plugins nor decisions.
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    first = await tenant.draft("k")
    assert first.decision == revise("again")
    request = pb.DeletePluginRequest if gone == "DeletePlugin" else pb.PausePluginRequest
    await tenant.as_client(gone, request(name="a"))
    assert await tenant.draft("k") == first
    async with asyncio.timeout(60):
        while await other.draft("k") != first:
            pass
    assert (await tenant.draft("another")).decision == CONTINUE
    assert await tenant.log() == [("a", "revise")]


async def test_DispatchBeforeAgentFinalize__a_repeat_waits_for_the_claim_even_if_the_plugin_is_removed(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    gate = Gate(plugin, revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    first = asyncio.create_task(tenant.draft("k"))
    await gate.called()
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="a"))
    repeat = asyncio.create_task(tenant.draft("k"))
    await asyncio.wait([repeat], timeout=0.2)
    assert not repeat.done()
    gate.open.set()
    assert (await first, await repeat) == (await repeat, await first)
    assert (await repeat).decision == revise("again")


async def test_DispatchBeforeAgentFinalize__revises_are_numbered_and_capped(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    for number in (1, 2, 3):
        answer = await tenant.draft(f"k{number}")
        assert (answer.decision, list(answer.decided_by)) == (revise("again"), ["a"])
        assert (answer.revision_number, answer.max_revision_count) == (number, 3)
        assert not answer.capped_revisions
    capped = await tenant.draft("k4")
    assert capped == pb.DispatchBeforeAgentFinalizeResponse(
        decision=CONTINUE,
        max_revision_count=3,
        capped_revisions=[CappedRevision(plugin="a", cap=REVISION_CAP_RUN)],
    )
    assert await tenant.draft("k4") == capped
    assert await tenant.log() == [("a", "revise")] * 4 + [("a", "capped")]
    [logged] = await tenant.deliveries(decision="capped")
    assert (logged.session_id, logged.run_id, logged.error) == (
        "ses_1",
        "run_1",
        "its revision was not granted: the run had 3 revisions",
    )
    assert (await tenant.draft("k1", run_id="run_2")).revision_number == 1
    assert [(event.revision_count, event.max_revision_count) for event in plugin.heard[:4]] == [
        (0, 3),
        (1, 3),
        (2, 3),
        (3, 3),
    ]


async def test_DispatchBeforeAgentFinalize__a_restart_does_not_reset_the_count(
    mesh: HookMesh, databases: dict[str, ServiceDsn], keys: Path
) -> None:
    plugin = await mesh.plugin(revise("again"))
    async with hook_replica(databases["hook"], keys) as before:
        tenant = mesh.tenant(before)
        await tenant.register("a", plugin.endpoint, FINALIZE)
        for number in (1, 2, 3):
            await tenant.draft(f"k{number}")
    restarted = tenant.on(await mesh.replica())
    assert (await restarted.draft("k4")).capped_revisions
    assert (await restarted.draft("k3")).revision_number == 3


async def test_DispatchBeforeAgentFinalize__concurrent_drafts_get_at_most_three_revisions(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    answers = await asyncio.gather(*(tenant.draft(f"k{number}") for number in range(8)))
    assert sorted(answer.revision_number for answer in answers) == [0] * 5 + [1, 2, 3]
    assert sum(bool(answer.capped_revisions) for answer in answers) == 5


async def test_DispatchBeforeAgentFinalize__plugins_below_a_finalize_are_not_called(
    mesh: HookMesh, tenant: Tenant
) -> None:
    final, below = await mesh.plugin(finalize("done")), await mesh.plugin(revise("no"))
    await tenant.register("below", below.endpoint, FINALIZE)
    await tenant.register("final", final.endpoint, FINALIZE, priority=1)
    answer = await tenant.draft("k")
    assert (answer.decision, list(answer.decided_by), answer.revision_number) == (
        finalize("done"),
        ["final"],
        0,
    )
    assert below.heard == []


async def test_DispatchBeforeAgentFinalize__a_lower_finalize_does_not_undo_a_revise(
    mesh: HookMesh, tenant: Tenant
) -> None:
    answers = (revise("one"), CONTINUE, revise("two"), finalize("done"))
    for name, answer in zip("abcd", answers, strict=True):
        await tenant.register(name, (await mesh.plugin(answer)).endpoint, FINALIZE)
    merged = await tenant.draft("k")
    assert (merged.decision, list(merged.decided_by)) == (revise("one\n\ntwo"), ["a", "c"])
    assert await tenant.log() == [("a", "revise"), ("b", "continue"), ("c", "revise"), ("d", "finalize")]


async def test_DispatchBeforeAgentFinalize__only_plugins_with_access_see_the_draft(
    mesh: HookMesh, tenant: Tenant
) -> None:
    sees, blind = await mesh.plugin(CONTINUE), await mesh.plugin(CONTINUE)
    await tenant.register("sees", sees.endpoint, FINALIZE, grants=[CONTENT])
    await tenant.register("blind", blind.endpoint, FINALIZE)
    await tenant.draft("k", draft_text="the draft", draft_bytes=9, agent_id="main", revision_count=77)
    facts: dict[str, Any] = {
        "session_id": "ses_1",
        "run_id": "run_1",
        "agent_id": "main",
        "draft_bytes": 9,
        "max_revision_count": 3,
    }
    assert sees.heard == [events.BeforeAgentFinalizeEvent(draft_text="the draft", **facts)]
    assert blind.heard == [events.BeforeAgentFinalizeEvent(**facts)]


async def test_DispatchBeforeAgentFinalize__a_repeat_calls_no_plugin(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(revise("again"), CONTINUE)
    await tenant.register("a", plugin.endpoint, FINALIZE)
    first = await tenant.draft("k")
    assert await tenant.draft("k") == first
    assert await tenant.on(await mesh.replica()).draft("k") == first
    assert len(plugin.heard) == 1


async def test_DispatchBeforeAgentFinalize__a_key_belongs_to_its_tenant_and_run(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    await tenant.draft("k")
    assert (await tenant.draft("k", run_id="run_2")).revision_number == 1
    assert (await mesh.tenant(await mesh.replica()).draft("k")).decision == CONTINUE
    assert len(plugin.heard) == 2


async def test_DispatchBeforeAgentFinalize__concurrent_calls_with_one_key_get_one_decision(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    gate = Gate(plugin, revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    elsewhere = tenant.on(await mesh.replica())
    async with asyncio.TaskGroup() as together:
        calls = [together.create_task(caller.draft("k")) for caller in (tenant, elsewhere, tenant, elsewhere)]
        await gate.called()
        gate.open.set()
    answers = [call.result() for call in calls]
    assert [answer.revision_number for answer in answers] == [1] * 4
    assert all(answer == answers[0] for answer in answers)
    assert len(plugin.heard) == 1
    assert await tenant.log() == [("a", "revise")]


async def test_DispatchBeforeAgentFinalize__a_failed_dispatch_stores_nothing(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(decisions.FinalizeDecision(), revise(" "), revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    for _ in range(2):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.draft("k")
        assert caught.value.facts == {
            "plugin": "a",
            "hook": "BEFORE_AGENT_FINALIZE",
            "is_transient": "false",
        }
    assert (await tenant.draft("k")).revision_number == 1
    assert await tenant.log() == [("a", "failed"), ("a", "failed"), ("a", "revise")]


async def test_DispatchBeforeAgentFinalize__an_open_plugin_that_fails_is_skipped(
    mesh: HookMesh, tenant: Tenant
) -> None:
    bad, below = await mesh.plugin(revise(" \n")), await mesh.plugin(revise("again"))
    await tenant.register("bad", bad.endpoint, FINALIZE, priority=1, policy=OPEN)
    await tenant.register("below", below.endpoint, FINALIZE)
    answer = await tenant.draft("k")
    assert (answer.decision, list(answer.decided_by)) == (revise("again"), ["below"])
    assert (await tenant.deliveries())[
        -1
    ].error == "malformed answer: decision.revise.reason (string.pattern)"


async def test_DispatchBeforeAgentFinalize__a_waiting_call_dispatches_if_the_claim_fails(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    gate = Gate(plugin, None)
    await tenant.register("a", plugin.endpoint, FINALIZE)
    failing = asyncio.create_task(tenant.draft("k"))
    await gate.called()
    waiting = asyncio.create_task(tenant.draft("k"))
    plugin.says(CONTINUE)
    gate.open.set()
    with refused(Reason.PLUGIN_FAILED):
        await failing
    assert (await waiting).decision == CONTINUE


async def test_DispatchBeforeAgentFinalize__a_cancelled_call_releases_its_claim(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    gate = Gate(plugin, None)
    # A claim that is not released lasts longer than this.
    await tenant.register("a", plugin.endpoint, FINALIZE, timeout=Duration(seconds=600))
    gone = asyncio.create_task(tenant.draft("k"))
    await gate.called()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    plugin.says(CONTINUE)
    assert (await tenant.draft("k")).decision == CONTINUE
    assert ("a", "failed") in await tenant.log()


@pytest.fixture
async def database(databases: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    async with open_database(databases["hook"].app, name="test", max_connections=1) as opened:
        yield opened


async def leave_claim(database: Database, tenant_id: str, seconds: float) -> None:
    """Leave a claim behind, as a process does that is killed during a dispatch."""
    async with database.transaction(tenant_id) as connection:
        draft = DraftKey(tenant_id, "run_1", "k")
        assert await claim_draft(connection, draft, uuid.uuid4(), timedelta(seconds=seconds))


async def test_DispatchBeforeAgentFinalize__the_claim_of_a_dead_process_is_taken_over(
    mesh: HookMesh, tenant: Tenant, database: Database
) -> None:
    plugin = await mesh.plugin(revise("again"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    await leave_claim(database, tenant.tenant_id, 0.3)
    assert (await tenant.draft("k")).revision_number == 1


async def test_DispatchBeforeAgentFinalize__another_call_holds_the_claim_beyond_the_deadline(
    mesh: HookMesh, tenant: Tenant, database: Database, ample_reserve: float
) -> None:
    plugin = await mesh.plugin(CONTINUE)
    await tenant.register("a", plugin.endpoint, FINALIZE)
    await leave_claim(database, tenant.tenant_id, 3600)
    with refused(Reason.CONFLICT) as caught:
        await tenant.draft("k", timeout_seconds=ample_reserve + 1.0)
    assert caught.value.retry_after_seconds is not None
    assert plugin.heard == []


async def test_DispatchBeforeAgentFinalize__a_call_that_lost_its_claim_returns_the_other_decision(
    mesh: HookMesh, tenant: Tenant, database: Database
) -> None:
    plugin = await mesh.plugin()
    gate = Gate(plugin, revise("late"))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    late = asyncio.create_task(tenant.draft("k"))
    await gate.called()
    async with database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update decisions set lease_until = now() - interval '1 second'")
    plugin.says(revise("in time"))
    in_time = await tenant.draft("k")
    gate.open.set()
    assert in_time.decision == revise("in time")
    assert await late == in_time
    assert (await tenant.draft("k2")).revision_number == 2


async def test_DispatchBeforeAgentFinalize__waiting_calls_are_notified(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn]
) -> None:
    plugin = await mesh.plugin(CONTINUE)
    await tenant.register("a", plugin.endpoint, FINALIZE)
    topic = DraftKey(tenant.tenant_id, "run_1", "k").topic
    async with open_listener(databases["hook"].app, name="test", channels=(CLAIM_ENDED_CHANNEL,)) as listener:
        with listener.subscription(CLAIM_ENDED_CHANNEL, topic) as ended:
            assert await ended.wait(60)  # A listener wakes all subscriptions when it connects.
            await tenant.draft("k")
            assert await ended.wait(60)


async def test_DispatchBeforeAgentFinalize__no_run(tenant: Tenant) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await tenant.draft("k", run_id="")
    assert [violation.field for violation in caught.value.violations] == ["event.run_id"]
