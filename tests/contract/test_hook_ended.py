"""Telling that a child session has ended, and the log of all calls."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract.hook_fixtures import (
    ALLOW,
    CLOSED,
    DEAD_ENDPOINT,
    ENDED,
    FINALIZE,
    SPAWN,
    HookMesh,
    Tenant,
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


async def test_DispatchSubagentEnded__nobody_to_tell(tenant: Tenant) -> None:
    assert await tenant.ended() == 0
    assert await tenant.deliveries() == []


async def test_DispatchSubagentEnded__observers_are_told_side_by_side(mesh: HookMesh, tenant: Tenant) -> None:
    both = asyncio.Barrier(2)

    async def meet(_event: Any) -> None:
        await both.wait()

    for name in ("a", "b"):
        plugin = await mesh.plugin()
        plugin.decide = meet
        await tenant.register(name, plugin.endpoint, ENDED)
    assert await tenant.ended() == 2


async def test_DispatchSubagentEnded__a_repeat_tells_only_those_that_have_not_heard(
    mesh: HookMesh, tenant: Tenant
) -> None:
    first, late = await mesh.plugin(), await mesh.plugin()
    await tenant.register("first", first.endpoint, ENDED)
    facts: dict[str, Any] = {"parent_session_id": "ses_0", "outcome": "killed"}
    assert await tenant.ended("e1", **facts) == 1
    await tenant.register("late", late.endpoint, ENDED)
    assert await tenant.ended("e1", **facts) == 2
    assert await tenant.ended("e1", **facts) == 2
    told = events.SubagentEndedEvent(session_id="ses_1", run_id="run_1", event_key="e1", **facts)
    assert first.heard == late.heard == [told]
    assert await tenant.ended("e2") == 2
    assert len(first.heard) == 2


async def test_DispatchSubagentEnded__an_open_observer_that_fails_is_only_logged(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    await tenant.register("a", plugin.endpoint, ENDED)
    await tenant.register("dead", DEAD_ENDPOINT, ENDED)
    assert await tenant.ended() == 1
    assert sorted(await tenant.log()) == [("a", "told"), ("dead", "failed")]
    await tenant.register("dead", plugin.endpoint, ENDED)
    assert await tenant.ended() == 2


async def test_DispatchSubagentEnded__a_closed_observer_that_fails(mesh: HookMesh, tenant: Tenant) -> None:
    plugin, back = await mesh.plugin(), await mesh.plugin()
    await tenant.register("dead", DEAD_ENDPOINT, ENDED, policy=CLOSED, priority=1)
    await tenant.register("a", plugin.endpoint, ENDED)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.ended()
    assert caught.value.facts["plugin"] == "dead"
    await tenant.register("dead", back.endpoint, ENDED, policy=CLOSED)
    assert await tenant.ended() == 2
    assert (len(plugin.heard), len(back.heard)) == (1, 1)


async def test_DispatchSubagentEnded__another_tenants_event_key(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    other = mesh.tenant(await mesh.replica())
    for one in (tenant, other):
        await one.register("a", plugin.endpoint, ENDED)
        assert await one.ended("e1") == 1
    assert len(plugin.heard) == 2


async def test_DispatchSubagentEnded__no_event_key(tenant: Tenant) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await tenant.ended("")
    assert [violation.field for violation in caught.value.violations] == ["event.event_key"]


async def test_ListDeliveries__newest_first_with_what_the_call_was_about(mesh: HookMesh, tenant: Tenant) -> None:
    gate, reviewer, observer = await mesh.plugin(ALLOW), await mesh.plugin(revise("no")), await mesh.plugin()
    await tenant.register("gate", gate.endpoint, SPAWN)
    await tenant.register("reviewer", reviewer.endpoint, FINALIZE)
    await tenant.register("observer", observer.endpoint, ENDED)
    await tenant.spawn(session_id="ses_1")
    await tenant.draft("k", session_id="ses_1", run_id="run_1")
    await tenant.ended(session_id="ses_2", run_id="run_2")
    deliveries = await tenant.deliveries()
    assert [(row.plugin, row.hook, row.session_id, row.run_id, row.decision, row.error) for row in deliveries] == [
        ("observer", ENDED, "ses_2", "run_2", "told", ""),
        ("reviewer", FINALIZE, "ses_1", "run_1", "revise", ""),
        ("gate", SPAWN, "ses_1", "", "allow", ""),
    ]
    starts = [row.start_time.ToNanoseconds() for row in deliveries]
    assert starts == sorted(starts, reverse=True)
    assert all(row.latency.ToNanoseconds() > 0 for row in deliveries)
    assert [row.plugin for row in await tenant.deliveries("ses_1")] == ["reviewer", "gate"]
    assert [row.plugin for row in await tenant.deliveries(page_size=1)] == ["observer"]
    assert await tenant.deliveries("ses_3") == []
