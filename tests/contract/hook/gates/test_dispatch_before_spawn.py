"""DispatchBeforeSpawn: ask whether a session may be spawned."""

import asyncio
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import HAS_ALLOW_FACT
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.peers import Peer

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    DEAD_ENDPOINT,
    ENDED,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, deny


async def never(_event: Any) -> Any:
    await asyncio.Event().wait()


async def test_DispatchBeforeSpawn__no_plugin(mesh: HookMesh, tenant: Tenant) -> None:
    observer = await mesh.plugin()
    await tenant.register("observer", observer.endpoint, ENDED)
    answer = await tenant.spawn()
    assert (answer.decision, answer.decided_by) == (ALLOW, "")
    assert await tenant.deliveries() == []
    assert observer.heard == []


async def test_DispatchBeforeSpawn__allowed_by_all(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    await tenant.register("b", plugin.endpoint, SPAWN)
    answer = await tenant.spawn()
    assert (answer.decision, answer.decided_by) == (ALLOW, "")
    assert sorted(await tenant.log()) == [("a", "allow"), ("b", "allow")]


async def test_DispatchBeforeSpawn__first_deny_by_priority_decides(mesh: HookMesh, tenant: Tenant) -> None:
    low, first, second, high = [
        await mesh.plugin(answer) for answer in (deny("low"), deny("1"), deny("2"), ALLOW)
    ]
    await tenant.register("low", low.endpoint, SPAWN, priority=-1)
    await tenant.register("first", first.endpoint, SPAWN)
    await tenant.register("second", second.endpoint, SPAWN)
    await tenant.register("high", high.endpoint, SPAWN, priority=9)
    answer = await tenant.spawn()
    assert (answer.decision, answer.decided_by) == (deny("1"), "first")
    called = [("first", "deny"), ("high", "allow"), ("low", "deny"), ("second", "deny")]
    assert sorted(await tenant.log()) == called
    assert len(low.heard) == len(second.heard) == 1


async def test_DispatchBeforeSpawn__repeat_of_an_allowed_spawn_is_allowed(
    mesh: HookMesh, tenant: Tenant
) -> None:
    """The first answer may be lost, and a plugin may have heard that the spawn was allowed."""
    plugin, strict = await mesh.plugin(ALLOW), await mesh.plugin(deny("no"))
    await tenant.register("a", plugin.endpoint, SPAWN)
    assert (await tenant.spawn()).decision == ALLOW
    await tenant.register("strict", strict.endpoint, SPAWN)
    assert (await tenant.spawn(session_id="ses_1")).decision == ALLOW
    assert (await tenant.spawn(session_id="ses_2")).decision == deny("no")
    assert (await tenant.spawn(session_id="ses_2")).decision == deny("no")
    assert len(strict.heard) == 3


async def test_DispatchBeforeSpawn__repeat_of_an_allowed_spawn_needs_no_plugin(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    assert (await tenant.spawn()).decision == ALLOW
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN)
    assert (await tenant.spawn(session_id="ses_1")).decision == ALLOW
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn(session_id="ses_2")


async def test_DispatchBeforeSpawn__the_plugin_is_called_by_hook_for_the_tenant(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    await tenant.spawn()
    (caller,) = plugin.callers
    assert (caller.kind, caller.service, caller.tenant_id) == (CallerKind.SERVICE, "hook", tenant.tenant_id)


async def test_DispatchBeforeSpawn__only_plugins_with_access_see_the_task(
    mesh: HookMesh, tenant: Tenant
) -> None:
    sees, blind = await mesh.plugin(ALLOW), await mesh.plugin(ALLOW)
    await tenant.register("sees", sees.endpoint, SPAWN, grants=[CONTENT])
    await tenant.register("blind", blind.endpoint, SPAWN)
    facts: dict[str, Any] = {
        "parent_session_id": "ses_0",
        "agent_id": "main",
        "depth": 2,
        "attachment_count": 3,
        "label": "l",
    }
    await tenant.spawn(task="the task", **facts)
    assert sees.heard == [events.BeforeSpawnEvent(session_id="ses_1", task="the task", **facts)]
    assert blind.heard == [events.BeforeSpawnEvent(session_id="ses_1", **facts)]


@pytest.mark.parametrize(
    ("malformed", "rule"),
    [
        (None, "malformed answer: decision (required)"),
        (decisions.SpawnDecision(), "malformed answer: decision.decision (required)"),
        (deny(""), "malformed answer: decision.deny.reason (string.min_len)"),
    ],
)
async def test_DispatchBeforeSpawn__malformed_answer(
    mesh: HookMesh, tenant: Tenant, malformed: Any, rule: str
) -> None:
    plugin, below = await mesh.plugin(malformed), await mesh.plugin(ALLOW)
    await tenant.register("bad", plugin.endpoint, SPAWN, priority=1, policy=OPEN)
    await tenant.register("below", below.endpoint, SPAWN)
    assert (await tenant.spawn()).decision == ALLOW
    assert sorted(await tenant.log()) == [("bad", "failed"), ("below", "allow")]
    assert [delivery.error for delivery in await tenant.deliveries(plugin="bad")] == [rule]
    await tenant.register("bad", plugin.endpoint, SPAWN, priority=1, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.spawn()
    assert caught.value.facts["plugin"] == "bad"
    assert len(below.heard) == 2


async def test_DispatchBeforeSpawn__dead_plugin(tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.spawn()
    assert caught.value.facts["plugin"] == "dead"
    assert "127.0.0.1" not in str(caught.value)
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN, policy=OPEN)
    assert (await tenant.spawn()).decision == ALLOW
    assert await tenant.log() == [("dead", "failed"), ("dead", "failed")]


async def test_DispatchBeforeSpawn__the_text_of_a_failing_plugin_is_not_repeated(
    mesh: HookMesh, tenant: Tenant
) -> None:
    async def fail(event: Any) -> Any:
        raise ValueError(f"secret: {event.task}")

    plugin = await mesh.plugin()
    plugin.decide = fail
    await tenant.register("a", plugin.endpoint, SPAWN, grants=[CONTENT])
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.spawn(task="the task")
    (delivery,) = await tenant.deliveries()
    assert "secret" not in delivery.error + str(caught.value)
    assert "the task" not in delivery.error + str(caught.value)


async def test_DispatchBeforeSpawn__plugin_takes_longer_than_its_timeout(
    mesh: HookMesh, tenant: Tenant
) -> None:
    slow, below = await mesh.plugin(), await mesh.plugin(ALLOW)
    slow.decide = never
    timeout = Duration(nanos=600_000_000)
    await tenant.register("slow", slow.endpoint, SPAWN, priority=1, policy=OPEN, timeout=timeout)
    await tenant.register("below", below.endpoint, SPAWN)
    assert (await tenant.spawn()).decision == ALLOW
    assert sorted(await tenant.log()) == [("below", "allow"), ("slow", "failed")]
    (failed,) = await tenant.deliveries(plugin="slow")
    assert failed.error == "no answer within 0.6 s"
    assert failed.latency.ToMilliseconds() >= 500
    await tenant.register("slow", slow.endpoint, SPAWN, priority=1, timeout=timeout)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn()


async def test_DispatchBeforeSpawn__answers_inside_the_callers_deadline(
    mesh: HookMesh, tenant: Tenant, ample_reserve: float
) -> None:
    slow, below = await mesh.plugin(), await mesh.plugin(deny("no"))
    slow.decide = never
    timeout = Duration(seconds=600)
    await tenant.register("slow", slow.endpoint, SPAWN, priority=1, policy=OPEN, timeout=timeout)
    await tenant.register("below", below.endpoint, SPAWN, policy=OPEN)
    answer = await tenant.spawn(timeout_seconds=ample_reserve + 2.0)
    assert answer.decision == deny("no")
    assert sorted(await tenant.log()) == [("below", "deny"), ("slow", "failed")]


async def test_DispatchBeforeSpawn__endpoint_no_longer_allowed(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", plugin.endpoint, SPAWN)
    stricter = tenant.on(await mesh.replica(allow_private_endpoints=False))
    with refused(Reason.PLUGIN_FAILED):
        await stricter.spawn()
    assert plugin.heard == []
    (delivery,) = await tenant.deliveries()
    assert (decision_of(delivery), delivery.error) == ("failed", "the call failed: ENDPOINT_NOT_ALLOWED")


async def allowed(tenant: Tenant, session_id: str) -> bool:
    request = pb.GetSpawnDecisionRequest(session_id=session_id)
    answer: pb.GetSpawnDecisionResponse = await tenant.as_session("GetSpawnDecision", request)
    return answer.allowed


async def test_GetSpawnDecision__says_what_the_plugins_allowed(
    mesh: HookMesh, tenant: Tenant, replica: Peer
) -> None:
    assert not await allowed(tenant, "ses_unasked")
    await tenant.spawn(session_id="ses_without_plugin")
    assert not await allowed(tenant, "ses_without_plugin")
    gate = await mesh.plugin(ALLOW, deny("no"), ALLOW)
    await tenant.register("gate", gate.endpoint, SPAWN)
    for _ in range(2):  # Allowed, and then denied: what was allowed stays so.
        await tenant.spawn(session_id="ses_1")
        assert await allowed(tenant, "ses_1")
    assert not await allowed(tenant, "ses_2")
    assert not await allowed(mesh.tenant(replica), "ses_1")
    await tenant.register("away", DEAD_ENDPOINT, SPAWN, policy=OPEN)
    await tenant.spawn(session_id="ses_2")
    assert await allowed(tenant, "ses_2")


async def test_GetSpawnDecision__a_plugin_beside_the_one_that_allowed_denies(
    mesh: HookMesh, tenant: Tenant
) -> None:
    """The first one has reserved something, perhaps, and has to hear that the spawn failed."""
    await tenant.register("above", (await mesh.plugin(ALLOW)).endpoint, SPAWN, priority=1)
    await tenant.register("below", (await mesh.plugin(deny("no"))).endpoint, SPAWN)
    for _ in range(2):  # What is known of one that allowed is no permission.
        answer = await tenant.spawn()
        assert (answer.decided_by, answer.has_allow) == ("below", True)
    assert await allowed(tenant, "ses_1")


async def test_GetSpawnDecision__a_plugin_beside_the_one_that_allowed_fails(
    mesh: HookMesh, tenant: Tenant
) -> None:
    await tenant.register("above", (await mesh.plugin(ALLOW)).endpoint, SPAWN, priority=1)
    below = await mesh.plugin(decisions.SpawnDecision())
    await tenant.register("below", below.endpoint, SPAWN, policy=CLOSED)
    for _ in range(2):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.spawn()
        assert caught.value.facts[HAS_ALLOW_FACT] == "true"
    assert await allowed(tenant, "ses_1")


async def test_DispatchBeforeSpawn__no_plugin_has_allowed(mesh: HookMesh, tenant: Tenant) -> None:
    gate = await mesh.plugin(deny("no"), decisions.SpawnDecision())
    await tenant.register("gate", gate.endpoint, SPAWN, policy=CLOSED)
    assert not (await tenant.spawn()).has_allow
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.spawn()
    assert HAS_ALLOW_FACT not in caught.value.facts


@pytest.mark.parametrize(("answer", "heard"), [(ALLOW, True), (deny("no"), False)], ids=["allow", "deny"])
async def test_GetSpawnDecision__a_replica_died_after_the_answer_of_the_plugin(
    mesh: HookMesh,
    tenant: Tenant,
    postgres: Postgres,
    databases: dict[str, ServiceDsn],
    answer: Any,
    heard: bool,
) -> None:
    await tenant.register("gate", (await mesh.plugin(answer)).endpoint, SPAWN)
    await tenant.spawn(session_id="ses_1")
    name = conninfo_to_dict(databases["hook"].app)["dbname"]
    dsn = make_conninfo(postgres.superuser_dsn, dbname=name)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        # As the process left it between the log and its decision.
        await link.execute("delete from hook.allowed_spawns where tenant_id = %s", (tenant.tenant_id,))
    assert await allowed(tenant, "ses_1") is heard
    assert not await allowed(tenant, "ses_2")
    assert not await allowed(mesh.tenant(await mesh.replica()), "ses_1")
