"""Budgets of the mesh in memory, as the tests of a program use them."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh_client import (
    Attachment,
    Budget,
    BudgetUsage,
    Conflict,
    EventKind,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Reason,
    RunFailed,
    RunNotDone,
    RunState,
    Session,
    SessionEvent,
    SessionMode,
    sync,
)
from spawnmesh_client.testing import FakeMesh

WEEK = timedelta(days=7)


async def happenings(session: Session, *kinds: EventKind) -> list[SessionEvent]:
    return [event async for event in session.events(wait=False) if event.kind in kinds]


async def states(session: Session) -> list[tuple[RunState | None, str]]:
    return [(event.run_state, event.detail) for event in await happenings(session, EventKind.RUN)]


async def waiting(mesh: FakeMesh, **options: Any) -> Session:
    """Spawn a session whose run uses 0.52 of 0.50, and return it while the run waits."""
    mesh.uses(cost=0.52, tokens=100, run_time=3)
    limits = Budget(cost=0.5, wait=options.pop("wait", None))
    return await (await mesh.spawn("Work.", budget=limits, **options)).refresh()


async def test_run_waits_until_its_budget_is_raised_and_goes_on_with_the_script() -> None:
    mesh = FakeMesh()
    session = await waiting(mesh)
    mesh.answers("done at last")
    assert session.latest_run is not None
    assert (session.latest_run.state, session.latest_run.budget_session_id) == (
        "WAITING_BUDGET",
        session.session_id,
    )
    assert session.budget_session_ids == (session.session_id,)
    with pytest.raises(RunNotDone) as late:
        await session.result(timeout=0)
    assert late.value.budget_session_id == session.session_id
    usage = await session.usage()
    assert (usage.session.ended_run_count, usage.session.usage.cost) == (0, 0.0), "it has not ended"
    (before,) = usage.budgets
    assert before.usage == BudgetUsage(0.52, 100, 1, timedelta(seconds=3))
    assert (before.reached, before.updated_by) == (("COST",), "")

    raised = await session.set_budget(cost=1.0, etag=before.etag)

    assert (raised.budget, raised.reached, raised.updated_by) == (Budget(cost=1.0, wait=WEEK), (), "fake")
    assert raised.etag != before.etag
    result = await session.result()
    assert (result.text, result.run.budget_session_id) == ("done at last", "")
    assert (result.usage.cost, result.usage.output_token_count) == (0.52, 103)
    assert await states(session) == [
        ("QUEUED", ""),
        ("RUNNING", ""),
        ("WAITING_BUDGET", f"the budget of session {session.session_id} is used up: cost 0.52 of 0.50"),
        ("QUEUED", "the budget has room"),
        ("RUNNING", ""),
        ("SUCCEEDED", ""),
    ]
    (changed,) = await happenings(session, EventKind.BUDGET_CHANGED)
    assert changed.detail == "cost 0.50 -> 1.00 by fake"
    usage = await session.usage()
    assert (usage.session.usage.cost, usage.session.ended_run_count) == (0.52, 1)
    (after,) = usage.budgets
    assert (after.usage.calls, after.usage.tokens) == (2, 104), "an answer is a call, too"
    assert (await session.set_budget(calls=9)).budget.calls == 9, "also of a closed session"
    assert [event.kind async for event in session.events()][-1] is EventKind.CLOSED


async def test_run_that_stays_below_its_limits_never_waits() -> None:
    mesh = FakeMesh()
    mesh.uses(cost=0.49, tokens=99, calls=3, run_time=timedelta(minutes=9))
    session = await mesh.spawn("Work.", budget=Budget(0.5, 100, 4, timedelta(minutes=10)))
    assert (await session.result()).text == "done"
    mesh.uses(cost=99)
    assert (await mesh.run("Work without a budget.")).usage.cost == 99


@pytest.mark.parametrize(
    ("limit", "use", "detail"),
    [
        (Budget(tokens=1000), {"tokens": 1000}, "tokens 1000 of 1000"),
        (Budget(calls=3), {"calls": 3}, "model calls 3 of 3"),
        (Budget(run_time=90), {"run_time": 91}, "run time 91.0 s of 90.0 s"),
        (Budget(cost=1, calls=1), {"cost": 1}, "cost 1.00 of 1.00; model calls 1 of 1"),
    ],
)
async def test_each_limit_stops_the_run(limit: Budget, use: dict[str, Any], detail: str) -> None:
    mesh = FakeMesh()
    mesh.uses(**use)
    session = await mesh.spawn("Work.", budget=limit)
    assert (await states(session))[-1] == (
        "WAITING_BUDGET",
        f"the budget of session {session.session_id} is used up: {detail}",
    )


async def test_family_shares_the_budgets_of_all_ancestors() -> None:
    mesh = FakeMesh()
    mesh.answers("done", "done")
    parent = await mesh.spawn("Work.", mode=SessionMode.SESSION, budget=Budget(cost=1.0))
    await parent.result()
    child = await mesh.spawn("Help.", mode=SessionMode.SESSION, parent=parent)
    await child.result()
    mesh.uses(cost=1.5)
    grandchild = await (await mesh.spawn("Help.", parent=child, budget=Budget(cost=1.2))).refresh()
    assert grandchild.budget_session_ids == (parent.session_id, grandchild.session_id)
    assert grandchild.latest_run is not None
    assert grandchild.latest_run.budget_session_id == parent.session_id, "the outermost one is named"
    run = await child.send("And this?")
    child = await child.refresh()
    assert child.latest_run is not None
    assert (child.latest_run.run_id, child.latest_run.state) == (run.run_id, "WAITING_BUDGET")

    await parent.set_budget(cost=2)
    assert (await child.result()).text == "done"
    stopped = (await grandchild.refresh()).latest_run
    assert stopped is not None
    assert stopped.state == "WAITING_BUDGET", "its own budget has no room"
    await grandchild.set_budget(cost=2)
    await grandchild.result()

    usage = await parent.usage()
    assert (usage.session.ended_run_count, usage.session.session_count) == (1, 1)
    assert (usage.family.ended_run_count, usage.family.session_count) == (4, 3)
    assert (usage.session.usage.cost, usage.family.usage.cost) == (0.0, 1.5)
    shared, own = (await grandchild.usage()).budgets
    assert (shared.usage.calls, own.usage.calls) == (5, 2)


async def test_run_fails_at_once_or_when_its_time_is_over() -> None:
    mesh = FakeMesh()
    session = await waiting(mesh, wait=0)
    for ended in (session, await waiting(mesh, wait=0.05)):
        with pytest.raises(
            RunFailed, match=rf"budget of session {ended.session_id} is used up: cost 0.52 of 0.50"
        ) as failed:
            await ended.result(timeout=60)
        assert (failed.value.reason, failed.value.state) == ("SESSION_BUDGET_EXCEEDED", "FAILED")
    assert [state for state, _ in await states(session)] == ["QUEUED", "RUNNING", "FAILED"]


async def test_waiting_run_is_ended_by_a_person_and_not_woken_by_a_message() -> None:
    mesh = FakeMesh()
    seen = []
    for end in ("interrupt", "kill", "delete"):
        session = await waiting(mesh, mode=SessionMode.SESSION)
        woken = await session.interrupt("Rather that.")
        assert woken is not None
        assert woken.state == "WAITING_BUDGET"
        await getattr(session, end)()
        if end == "delete":
            with pytest.raises(NotFound):
                await session.usage()
        else:
            latest = (await session.refresh()).latest_run
            assert latest is not None
            seen += [(latest.state, latest.budget_session_id)]
    assert seen == [("INTERRUPTED", ""), ("KILLED", "")]


async def test_limits_are_refused_as_by_a_mesh() -> None:
    mesh = FakeMesh()
    session = await waiting(mesh, mode=SessionMode.SESSION)
    with pytest.raises(FailedPrecondition, match=r"cost 0.51 is below the 0.52 that session") as below:
        await session.set_budget(cost=0.51)
    assert below.value.reason is Reason.BUDGET_BELOW_USAGE
    assert below.value.facts == {
        "session_id": session.session_id,
        "limit": "COST",
        "used": "0.52",
        "wanted": "0.51",
    }
    first = (await session.usage()).budgets[0]
    changed = await session.set_budget(cost=0.52, calls=9, etag=first.etag)
    assert (changed.reached, changed.budget) == (("COST",), Budget(cost=0.52, calls=9, wait=WEEK)), "it stops"
    assert await session.set_budget(cost=0.52) == changed, "no change, no version"
    with pytest.raises(Conflict) as differs:
        await session.set_budget(cost=3, etag=first.etag)
    assert (differs.value.reason, differs.value.facts["etag"]) == (Reason.ETAG_DIFFERS, changed.etag)
    removed = await session.set_budget(cost=None, wait=60)
    assert (removed.budget, removed.reached) == (Budget(calls=9, wait=timedelta(minutes=1)), ())
    assert (await session.set_budget(wait=None)).budget == Budget(calls=9, wait=WEEK)
    assert [event.detail for event in await happenings(session, EventKind.BUDGET_CHANGED)] == [
        "cost 0.50 -> 0.52, model calls no limit -> 9 by fake",
        "cost 0.52 -> no limit, wait 604800 s -> 60 s by fake",
        "wait 60 s -> 604800 s by fake",
    ]
    assert (await session.result()).text == "done"
    free = await mesh.spawn("Work.")
    with pytest.raises(FailedPrecondition) as missing:
        await free.set_budget(cost=1)
    assert missing.value.reason is Reason.BUDGET_MISSING
    assert (await free.usage()).budgets == ()
    with pytest.raises(InvalidRequest, match="has no limit"):
        await mesh.spawn("Work.", budget=Budget(wait=60))


async def test_every_script_is_a_call_that_needs_room() -> None:
    mesh = FakeMesh()
    mesh.publishes(Attachment("a.txt", b"a"))
    mesh.asks("Which?")
    mesh.holds()
    session = await mesh.spawn("Work.", budget=Budget(calls=1))
    seen = []
    for limit in (2, 3):
        latest = (await session.refresh()).latest_run
        assert latest is not None
        seen.append((latest.state, latest.output_file_count))
        await session.set_budget(calls=limit)
    (approval,) = [one async for one in mesh.approvals.list()]
    await mesh.approvals.answer(approval.approval_id, "This.")
    assert seen == [("WAITING_BUDGET", 1), ("WAITING_APPROVAL", 1)]
    latest = (await session.refresh()).latest_run
    assert latest is not None
    assert latest.state == "RUNNING"
    mesh.finish(session.session_id, "the end")
    assert (await session.result()).text == "the end"
    (budget,) = (await session.usage()).budgets
    assert (budget.usage.calls, budget.usage.tokens) == (3, 3)


def test_blocking_methods_do_the_same() -> None:
    fake = FakeMesh()
    fake.uses(cost=1)
    with sync.blocking(fake) as mesh:
        session = mesh.spawn("Work.", budget=Budget(cost=1))
        assert session.usage().budgets[0].reached == ("COST",)
        assert session.set_budget(cost=2).reached == ()
        assert session.result().text == "done"


async def test_waiting_result_goes_on_when_the_budget_is_raised() -> None:
    mesh = FakeMesh()
    session = await waiting(mesh)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        result = group.create_task(session.result())
        await session.set_budget(cost=None)
    assert result.result().text == "done"
