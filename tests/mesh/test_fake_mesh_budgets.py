"""Budgets in the mesh in memory are as those of the real one: the same scenario, the same record."""

import json

import pytest
from spawnmesh_client import Agent, Budget, Mesh, RunFailed, Session, SessionEvent
from spawnmesh_client.testing import FakeMesh

from tests.support.mesh.both_meshes import Record, real, refused, tenant
from tests.support.waiting import eventually

__all__ = ["real", "tenant"]

DAY_SECONDS = 86_400.0
PROMPT = "You are the caller. Make the call that you are given, and say what came of it."
TASK = f"write_file {json.dumps({'path': 'a.txt', 'content': 'hello'})}"
"""The run makes one model call for the call of the tool, and one for its answer."""


async def stopped(session: Session) -> Session:
    """Return the session once its run waits for its budget."""

    async def waiting() -> Session | None:
        now = await session.refresh()
        is_waiting = now.latest_run is not None and now.latest_run.state == "WAITING_BUDGET"
        return now if is_waiting else None

    found = await eventually(waiting)
    assert found is not None
    return found


async def scenario(mesh: Mesh) -> Record:
    await mesh.agents.put(Agent("clerk", system_prompt=PROMPT, tools=("write_file",)))
    free = await mesh.spawn("Say hello.", runtime="EXTERNAL")
    seen: Record = [await refused(free.set_budget(calls=1)), (await free.usage()).budgets]
    seen += [await refused(mesh.spawn("x", budget=Budget(wait=60)))]

    session = await mesh.spawn(TASK, agent="clerk", budget=Budget(calls=1, run_time=600))
    waiting = await stopped(session)
    assert waiting.latest_run is not None
    seen += [waiting.budget_session_ids == (session.session_id,)]
    seen += [waiting.latest_run.budget_session_id == session.session_id, waiting.latest_run.attempt_count]
    usage = await session.usage()
    (first,) = usage.budgets
    seen += [first.budget, first.reached, first.usage.calls, first.updated_by, first.session_id[:4]]
    seen += [usage.session.ended_run_count, usage.family.session_count, usage.is_family_partial]
    seen += [await refused(session.set_budget(calls=2, etag="other"))]
    seen += [await refused(session.set_budget(wait=31 * DAY_SECONDS))]
    changed = await session.set_budget(calls=3, wait=60, etag=first.etag)
    seen += [changed.budget, changed.reached, changed.updated_by != "", changed.etag != first.etag]
    result = await session.result(timeout=60)
    seen += [result.run.state, result.run.budget_session_id]
    seen += [await refused(session.set_budget(calls=1)), (await session.set_budget(calls=2)).reached]
    events = [event async for event in session.events()]
    seen += [(one.kind, one.run_state, said(one, changed.updated_by, session)) for one in events]
    usage = await session.usage()
    seen += [usage.session.ended_run_count, usage.budgets[0].usage.calls]

    child = await mesh.spawn(TASK, agent="clerk", parent=free, budget=Budget(calls=1, wait=0))
    with pytest.raises(RunFailed) as failed:
        await child.result(timeout=60)
    seen += [failed.value.reason, failed.value.message.replace(child.session_id, "ses_…")]
    seen += [(await free.usage()).family.session_count]
    return seen


def said(event: SessionEvent, person: str, session: Session) -> str:
    """Return the detail of an event without names and numbers that differ."""
    detail = event.detail.replace(person, "a person").replace(session.session_id, "ses_…")
    return "" if event.run_state == "RUNNING" else detail


async def test_scenario_leaves_the_same_record(real: Mesh) -> None:
    fake = FakeMesh()
    fake.holds()
    fake.uses()
    fake.answers("done")
    fake.uses()
    assert await scenario(fake) == await scenario(real)
