"""Changes of approvals, budgets and files are published to observers, each with its change."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.session.v1 import approval_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.budget_pb2 import Budget
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.reasons import Reason

from tests.support.session.approvals import (
    approve,
    ask,
    call_key,
    deny,
    get,
    let_expire,
    take,
    waiting_run,
)
from tests.support.session.budgets import WAITING, Spending, wake
from tests.support.session.calls import fail, kill
from tests.support.session.enabled_hooks import enable, enable_shared
from tests.support.session.harness import Mesh
from tests.support.session.hook_recorder import HookRecorder, recording
from tests.support.session.interrupts import OPEN, interrupt, refusal_of, steer
from tests.support.session.outputs import file, held_run, publish
from tests.support.session.tables import forget_shared_hooks, jobs_of, rows, sweeping

AGENT = "default"
"""The agent of the sessions of these tests."""

CHANGES = (
    HookKind.HOOK_KIND_APPROVAL_REQUESTED,
    HookKind.HOOK_KIND_APPROVAL_ESCALATED,
    HookKind.HOOK_KIND_APPROVAL_DECIDED,
    HookKind.HOOK_KIND_BUDGET_REACHED,
    HookKind.HOOK_KIND_BUDGET_CHANGED,
    HookKind.HOOK_KIND_FILES_PUBLISHED,
)
STARTS_AND_ENDS = (
    HookKind.HOOK_KIND_SESSION_START,
    HookKind.HOOK_KIND_SUBAGENT_SPAWNED,
    HookKind.HOOK_KIND_AGENT_END,
    HookKind.HOOK_KIND_SUBAGENT_ENDED,
    HookKind.HOOK_KIND_SESSION_END,
)


@pytest.fixture
async def unobserved(mesh: Mesh, postgres: Any) -> AsyncIterator[HookRecorder]:
    """Enable no hook, and record the events that are published."""
    await enable_shared(mesh)
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with recording(mesh, dsn) as recorder:
        yield recorder
    await forget_shared_hooks(postgres)


@pytest.fixture
async def recorder(unobserved: HookRecorder) -> HookRecorder:
    """Record events with the hooks of all changes enabled."""
    await enable(unobserved.mesh, *CHANGES, tenant=unobserved.mesh.tenant)
    return unobserved


async def test_a_requested_and_a_decided_approval(recorder: HookRecorder) -> None:
    mesh = recorder.mesh
    held, key, approval = await waiting_run(mesh, reason="secret reason")
    await ask(mesh, held, key, reason="secret reason")  # A repeat.
    ids = {"session_id": held.session.session_id, "run_id": held.run.run_id, "agent_id": AGENT}
    asked = observed.ObservedEvent(
        event_key=f"approval_requested:v1:{approval.approval_id}",
        event_time=approval.create_time,
        **ids,
        approval_requested=observed.ApprovalRequestedEvent(
            approval_id=approval.approval_id,
            tool_name="mcp__bank__pay",
            expire_time=approval.expire_time,
        ),
    )
    assert await recorder.published(held.session.session_id) == [asked]
    await approve(mesh, approval.approval_id)
    decided = (await approve(mesh, approval.approval_id)).approval  # A repeat.
    told = observed.ObservedEvent(
        event_key=f"approval_decided:v1:{approval.approval_id}",
        event_time=decided.decide_time,
        **ids,
        approval_decided=observed.ApprovalDecidedEvent(
            approval_id=approval.approval_id,
            tool_name="mcp__bank__pay",
            state="APPROVED",
            decided_by=decided.decided_by,
        ),
    )
    assert decided.decided_by
    assert await recorder.published(held.session.session_id) == [asked, told]


async def test_a_denied_question_has_no_tool(recorder: HookRecorder) -> None:
    question = approval_pb2.Question(text="Which account?")
    held, _, approval = await waiting_run(recorder.mesh, question=question)
    await deny(recorder.mesh, approval.approval_id, "none of them", by="eve")
    events = await recorder.published(held.session.session_id)
    asked, told = sorted(events, key=lambda event: event.event_key, reverse=True)
    assert asked.approval_requested.tool_name == ""
    assert (told.approval_decided.tool_name, told.approval_decided.state) == ("", "DENIED")
    assert told.approval_decided.decided_by.endswith("eve")


async def interrupted(mesh: Mesh, session_id: str) -> None:
    await interrupt(mesh, session_id)


async def steered(mesh: Mesh, session_id: str) -> None:
    await steer(mesh, session_id)


async def killed(mesh: Mesh, session_id: str) -> None:
    await kill(mesh, session_id)


async def deleted(mesh: Mesh, session_id: str) -> None:
    await mesh.client(mesh.sessions.DeleteSession, session_pb.DeleteSessionRequest(session_id=session_id))


@pytest.mark.parametrize("end", [interrupted, steered, killed, deleted], ids=lambda end: end.__name__)
async def test_a_withdrawn_approval(
    recorder: HookRecorder, end: Callable[[Mesh, str], Awaitable[None]]
) -> None:
    held, _, approval = await waiting_run(recorder.mesh, spawn={"mode": OPEN})
    session_id = held.session.session_id
    await recorder.published(session_id)
    await end(recorder.mesh, session_id)
    _, told = await recorder.published(session_id)
    assert told.event_key == f"approval_decided:v1:{approval.approval_id}"
    assert told.run_id == held.run.run_id
    assert (told.approval_decided.state, told.approval_decided.decided_by) == ("WITHDRAWN", "")


async def test_an_approval_that_is_withdrawn_as_it_is_requested(recorder: HookRecorder) -> None:
    mesh = recorder.mesh
    held = await mesh.claim((await mesh.spawn(mode=OPEN)).session_id)
    await steer(mesh, held.session.session_id)
    await ask(mesh, held, call_key())
    events = await recorder.published(held.session.session_id)
    assert sorted(str(event.WhichOneof("event")) for event in events) == [
        "approval_decided",
        "approval_requested",
    ]


@pytest.mark.parametrize("policy", [approval_pb2.EXPIRY_POLICY_DENY, approval_pb2.EXPIRY_POLICY_FAIL])
async def test_an_expired_approval(recorder: HookRecorder, postgres: Any, policy: Any) -> None:
    mesh = recorder.mesh
    held, _, approval = await waiting_run(mesh, on_expiry=policy)
    await recorder.published(held.session.session_id)
    await let_expire(mesh, postgres, approval.approval_id)
    assert await refusal_of(approve(mesh, approval.approval_id)) is Reason.APPROVAL_CLOSED
    _, told = await recorder.published(held.session.session_id)
    assert told.approval_decided == observed.ApprovalDecidedEvent(
        approval_id=approval.approval_id, tool_name="mcp__bank__pay", state="EXPIRED"
    )
    assert told.event_time == (await get(mesh, approval.approval_id)).decide_time


QUESTION = approval_pb2.Question(text="secret question")


@pytest.mark.parametrize(
    ("subject", "tool_name"), [({}, "mcp__bank__pay"), ({"question": QUESTION}, "")], ids=["call", "question"]
)
async def test_an_approval_that_is_escalated_and_then_expires(
    recorder: HookRecorder, postgres: Any, subject: dict[str, Any], tool_name: str
) -> None:
    mesh = recorder.mesh
    held, _, approval = await waiting_run(mesh, on_expiry=approval_pb2.EXPIRY_POLICY_ESCALATE, **subject)
    await recorder.published(held.session.session_id)
    await let_expire(mesh, postgres, approval.approval_id)
    escalated = await get(mesh, approval.approval_id)
    async with sweeping(mesh) as sweep:
        await sweep.end_lost_runs()
    _, told = await recorder.published(held.session.session_id)
    assert told == observed.ObservedEvent(
        event_key=f"approval_escalated:v1:{approval.approval_id}",
        event_time=escalated.escalate_time,
        session_id=held.session.session_id,
        run_id=held.run.run_id,
        agent_id=AGENT,
        approval_escalated=observed.ApprovalEscalatedEvent(
            approval_id=approval.approval_id, tool_name=tool_name, expire_time=escalated.expire_time
        ),
    )
    await let_expire(mesh, postgres, approval.approval_id)
    _, _, end = await recorder.published(held.session.session_id)
    assert end.approval_decided == observed.ApprovalDecidedEvent(
        approval_id=approval.approval_id, tool_name=tool_name, state="EXPIRED"
    )


async def test_a_reached_and_a_changed_budget(recorder: HookRecorder, postgres: Any) -> None:
    mesh, spending = recorder.mesh, Spending(recorder.mesh)
    held = await spending.waiting_run(max_wait=Duration(seconds=90))
    session_id = held.session.session_id
    await spending.wait(held)  # A repeat.
    [run] = await rows(postgres, "select wait_time from session.runs where run_id = %s", held.run.run_id)
    [reached] = await recorder.published(session_id)
    assert (reached.run_id, reached.budget_reached.budget_session_id) == (held.run.run_id, session_id)
    assert reached.event_key.startswith(f"budget_reached:v1:{held.run.run_id}:{held.run.epoch}:")
    assert reached.event_time.ToDatetime(run["wait_time"].tzinfo) == run["wait_time"]
    assert reached.budget_reached.expire_time.seconds - reached.event_time.seconds == 90
    changed = await spending.raise_limits(session_id, max_model_call_count=2, mask=["max_model_call_count"])
    await spending.raise_limits(session_id, max_model_call_count=2, mask=["max_model_call_count"])
    refused = spending.raise_limits(session_id, max_model_call_count=3, etag="another")
    assert await refusal_of(refused) is Reason.ETAG_DIFFERS
    _, told = await recorder.published(session_id)
    version = (await rows(postgres, "select version from session.budgets where session_id = %s", session_id))[
        0
    ]
    assert told == observed.ObservedEvent(
        event_key=f"budget_changed:v1:{session_id}:{version['version']}",
        event_time=changed.update_time,
        session_id=session_id,
        agent_id=AGENT,
        budget_changed=observed.BudgetChangedEvent(changed_by=changed.updated_by),
    )
    await wake(mesh)
    again = await mesh.claim(session_id)
    await spending.call(again)
    assert (await spending.wait(again)).state == WAITING
    events = await recorder.published(session_id)
    assert [event.WhichOneof("event") for event in events[2:]] == ["budget_reached"]
    assert len({event.event_key for event in events}) == 3


async def test_a_run_that_waits_on_for_another_budget(recorder: HookRecorder) -> None:
    mesh, spending = recorder.mesh, Spending(recorder.mesh)
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    root = await spending.held_run(max_model_call_count=1)
    limits = Budget(max_model_call_count=1)
    child = await mesh.claim((await mesh.spawn_as(root, budget=limits)).session_id)
    ids = [root.session.session_id, child.session.session_id]
    await spending.call(child)
    await spending.wait(child)
    await spending.raise_limits(ids[0], max_wait=Duration(seconds=60), mask=["max_wait"])
    await wake(mesh)  # It waits on for the same budget.
    await spending.raise_limits(ids[0], max_model_call_count=2, mask=["max_model_call_count"])
    await wake(mesh)
    events = [event for event in await recorder.published(ids[1]) if event.HasField("budget_reached")]
    assert sorted(event.budget_reached.budget_session_id for event in events) == sorted(ids)
    assert len({event.event_key for event in events}) == 2


async def test_a_run_that_may_not_wait_reaches_no_budget(recorder: HookRecorder) -> None:
    spending = Spending(recorder.mesh)
    held = await spending.held_run(max_model_call_count=1, max_wait=Duration())
    await spending.call(held)
    await spending.wait(held)
    assert await recorder.published(held.session.session_id) == []


async def test_published_files(recorder: HookRecorder) -> None:
    mesh = recorder.mesh
    held = await held_run(mesh)
    files = [file("secret.csv", b"1,2\n"), file("b.bin", b"")]
    published = await publish(mesh, held, *files, request_id="one")
    await publish(mesh, held, *files, request_id="one")
    assert await refusal_of(publish(mesh, held, file(), request_id="one")) is Reason.REQUEST_ID_REUSED
    assert await recorder.published(held.session.session_id) == [
        observed.ObservedEvent(
            event_key=f"files_published:v1:{published.set_id}",
            event_time=published.publish_time,
            session_id=held.session.session_id,
            run_id=held.run.run_id,
            agent_id=AGENT,
            files_published=observed.FilesPublishedEvent(
                set_id=published.set_id, file_count=2, total_bytes=4
            ),
        )
    ]


async def changed_in_every_way(mesh: Mesh, postgres: Any) -> tuple[str, str]:
    """Make each of the six changes, and return the ids of two sessions."""
    escalates = approval_pb2.EXPIRY_POLICY_ESCALATE
    held, key, approval = await waiting_run(mesh, reason="secret reason", on_expiry=escalates)
    await let_expire(mesh, postgres, approval.approval_id)
    await approve(mesh, approval.approval_id, arguments_json='{"to": "secret"}')
    again = await mesh.claim(held.session.session_id)
    await take(mesh, again, key)
    await publish(mesh, again, file("secret.txt"))
    await fail(mesh, again)
    spending = Spending(mesh)
    waiting = await spending.waiting_run()
    await spending.raise_limits(waiting.session.session_id, max_model_call_count=2)
    return held.session.session_id, waiting.session.session_id


def names_of(events: list[observed.ObservedEvent]) -> set[str]:
    return {str(event.WhichOneof("event")) for event in events}


async def test_without_an_enabled_hook_no_change_is_published(
    unobserved: HookRecorder, postgres: Any
) -> None:
    sessions = await changed_in_every_way(unobserved.mesh, postgres)
    assert await unobserved.published(*sessions) == []
    assert await jobs_of(postgres, unobserved.mesh.tenant) == []


@pytest.mark.parametrize("hook", CHANGES, ids=HookKind.Name)
async def test_only_changes_of_the_enabled_hook_are_published(
    unobserved: HookRecorder, postgres: Any, hook: HookKind.ValueType
) -> None:
    await enable(unobserved.mesh, hook, tenant=unobserved.mesh.tenant)
    sessions = await changed_in_every_way(unobserved.mesh, postgres)
    names = names_of(await unobserved.published(*sessions))
    assert names == {HookKind.Name(hook).removeprefix("HOOK_KIND_").lower()}


async def test_a_job_that_is_repeated_publishes_the_same_events(
    recorder: HookRecorder, postgres: Any
) -> None:
    mesh = recorder.mesh
    await enable(mesh, *STARTS_AND_ENDS, tenant=mesh.tenant)
    sessions = await changed_in_every_way(mesh, postgres)
    recorder.losing = True
    lost = await recorder.published(*sessions)
    recorder.losing = False
    assert len(names_of(lost)) == len(CHANGES) + len(STARTS_AND_ENDS) - 1, "no session has a parent"
    arguments = await rows(
        postgres, "select arguments::text as text from session.jobs where tenant_id = %s", mesh.tenant
    )
    assert not [row for row in arguments if "secret" in row["text"]]
    repeated = (await recorder.published(*sessions))[len(lost) :]
    keys = [event.event_key for event in repeated]
    assert sorted(keys) == sorted({event.event_key for event in lost})
    by_key = {event.event_key: event for event in lost}
    assert repeated == [by_key[key] for key in keys]
    assert all(event.HasField("event_time") for event in repeated)
    assert {event.agent_id for event in repeated} == {AGENT}
