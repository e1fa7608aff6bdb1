"""ReportRunEvents: the watchers of a session get each event that a runner reports once."""

import asyncio
from typing import Any

import pytest
from spawnmesh.session.v1 import run_event_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain import run_events

from tests.support.session.calls import fail
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import held_run, refusal_of
from tests.support.session.tables import rows, superuser
from tests.support.session.watching import watched
from tests.support.waiting import eventually

REPORTED = (session_pb2.SESSION_EVENT_KIND_MODEL_FAILED, session_pb2.SESSION_EVENT_KIND_HOOK_DECIDED)
CALL = pb.DecidedCall(tool_name="run_command")


def failed(**failure: Any) -> pb.RunEvent:
    return pb.RunEvent(model_failure=pb.ModelFailure(**failure))


def decided(*plugins: str, **decision: Any) -> pb.RunEvent:
    return pb.RunEvent(hook_decision=pb.HookDecision(plugins=plugins or ("risk-policy",), **decision))


LIMITED = failed(model="p/one", reason="RATE_LIMIT", http_status=429)
BLOCKED = decided(blocked_call=CALL)
TOLD_LIMITED = "p/one: RATE_LIMIT (HTTP 429)"
TOLD_BLOCKED = "before_tool_call: risk-policy blocked the call of run_command"


async def report(mesh: Mesh, held: run_pb.ClaimedRun, first: int, *reported: pb.RunEvent) -> int:
    request = pb.ReportRunEventsRequest(epoch=held.run.epoch, first_number=first, events=reported)
    return int((await mesh.run(held, mesh.runs.ReportRunEvents, request)).reported_event_count)


async def told(mesh: Mesh, session_id: str) -> list[tuple[str, str]]:
    """Return the run and the detail of each reported event that a watcher gets."""
    messages = await watched(mesh, session_id, with_transcript=False, ends_at_newest=True)
    events = [one.session_event for one in messages]
    return [(event.run_id, event.detail) for event in events if event.kind in REPORTED]


async def test_ReportRunEvents__each_is_an_event_and_a_repeat_adds_nothing(mesh: Mesh) -> None:
    held = await held_run(mesh)
    session_id, run_id = held.session.session_id, held.run.run_id
    assert await report(mesh, held, 1, LIMITED, BLOCKED) == 2
    assert await report(mesh, held, 1, LIMITED, BLOCKED) == 2
    assert await report(mesh, held, 2, BLOCKED, LIMITED) == 3
    assert await report(mesh, held, 5, LIMITED) == 5, "the fourth was lost"
    assert await report(mesh, held, 4, BLOCKED) == 5, "it counts as known"
    limited, blocked = (run_id, TOLD_LIMITED), (run_id, TOLD_BLOCKED)
    assert await told(mesh, session_id) == [limited, blocked, limited, limited]
    assert (await mesh.get(session_id)).latest_run.reported_event_count == 5


MANY = tuple(f"plugin-{number}" for number in range(1, 65))
IN_WORDS = [
    (failed(model="p/two", reason="TIMEOUT"), "p/two: TIMEOUT"),
    (
        decided("picker", chosen_model=pb.ChosenModel(model="p/two")),
        "before_model_resolve: picker chose the model p/two",
    ),
    (
        decided("brand", changed_prompt=pb.ChangedPrompt(system_prompt_replaced=True)),
        "before_prompt_build: brand replaced the system prompt",
    ),
    (
        decided("memory", "law", changed_prompt=pb.ChangedPrompt(context_added=True, removed_tool_count=1)),
        "before_prompt_build: memory, law added context and took a tool away",
    ),
    (
        decided(
            "law",
            changed_prompt=pb.ChangedPrompt(
                system_prompt_replaced=True, context_added=True, removed_tool_count=2
            ),
        ),
        "before_prompt_build: law replaced the system prompt, added context and took 2 tools away",
    ),
    (BLOCKED, TOLD_BLOCKED),
    (
        decided("scrubber", rewritten_call=CALL),
        "before_tool_call: scrubber rewrote the arguments of run_command",
    ),
    (
        decided("cfo", "legal", call_to_approve=pb.DecidedCall(tool_name="übersetzen")),
        "before_tool_call: cfo, legal required an approval of the call of übersetzen",
    ),
    (
        decided(*MANY, blocked_call=CALL),
        f"before_tool_call: {', '.join(MANY[:8])} and 56 more blocked the call of run_command",
    ),
]


async def test_ReportRunEvents__a_watcher_reads_each_kind_in_one_line(mesh: Mesh) -> None:
    held = await held_run(mesh)
    assert await report(mesh, held, 1, *(event for event, _ in IN_WORDS)) == len(IN_WORDS)
    details = [detail for _, detail in await told(mesh, held.session.session_id)]
    assert details == [detail for _, detail in IN_WORDS]


async def test_ReportRunEvents__of_repeats_at_the_same_time_one_counts(mesh: Mesh, postgres: Any) -> None:
    held = await held_run(mesh)

    async def all_wait() -> bool:
        query = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%% sessions%%'"
        return len(await rows(postgres, query)) >= 4

    async with superuser(postgres) as link, link.transaction():
        lock = "select from session.sessions where session_id = %s for update"
        await link.execute(lock, (held.session.session_id,))
        reports = [asyncio.create_task(report(mesh, held, 1, LIMITED, BLOCKED)) for _ in range(4)]
        await eventually(all_wait)
    assert await asyncio.gather(*reports) == [2] * 4
    assert len(await told(mesh, held.session.session_id)) == 2


async def test_ReportRunEvents__a_further_claim_knows_how_many_there_were(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await report(mesh, held, 1, LIMITED)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    assert await refusal_of(report(mesh, held, 2, BLOCKED)) is Reason.RUN_LEASE_LOST
    second = await mesh.claim(held.session.session_id)
    assert second.run.reported_event_count == 1
    assert await refusal_of(report(mesh, held, 2, BLOCKED)) is Reason.RUN_LEASE_LOST
    assert await report(mesh, second, 2, BLOCKED) == 2
    assert [detail for _, detail in await told(mesh, held.session.session_id)] == [TOLD_LIMITED, TOLD_BLOCKED]


async def test_ReportRunEvents__a_run_reports_about_itself_alone(mesh: Mesh) -> None:
    held, other = await held_run(mesh), await held_run(mesh)
    await report(mesh, held, 1, BLOCKED)
    assert await told(mesh, held.session.session_id) == [(held.run.run_id, TOLD_BLOCKED)]
    assert await told(mesh, other.session.session_id) == []
    assert (await mesh.get(other.session.session_id)).latest_run.reported_event_count == 0
    request = pb.ReportRunEventsRequest(epoch=held.run.epoch + 1, first_number=2, events=[BLOCKED])
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.ReportRunEvents, request)
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
    assert len(await told(mesh, held.session.session_id)) == 1


async def test_ReportRunEvents__a_run_that_has_ended_has_no_further_ones(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await fail(mesh, held)
    assert await refusal_of(report(mesh, held, 1, LIMITED)) is Reason.RUN_LEASE_LOST
    assert await told(mesh, held.session.session_id) == []


async def test_ReportRunEvents__a_run_has_so_many_at_most(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "MAX_EVENTS", 3)
    held = await held_run(mesh)
    assert await report(mesh, held, 1, LIMITED, LIMITED) == 2
    assert await report(mesh, held, 3, BLOCKED, LIMITED, LIMITED) == 5
    assert await report(mesh, held, 6, LIMITED) == 6
    assert [detail for _, detail in await told(mesh, held.session.session_id)][2:] == [TOLD_BLOCKED]


@pytest.mark.parametrize(
    "name", ["", "p/\x00", "p\n/one", "\x1b[31mp/one", "p\u202e/one", "p\u2028", "p" * 257]
)
@pytest.mark.parametrize(
    "named",
    [
        pytest.param(lambda name: failed(model=name, reason="TIMEOUT"), id="failed_model"),
        pytest.param(lambda name: decided(chosen_model=pb.ChosenModel(model=name)), id="chosen_model"),
        pytest.param(lambda name: decided(blocked_call=pb.DecidedCall(tool_name=name)), id="tool"),
    ],
)
async def test_ReportRunEvents__a_name_that_a_terminal_obeys_is_refused(
    mesh: Mesh, named: Any, name: str
) -> None:
    await check_refused(mesh, named(name))


@pytest.mark.parametrize(
    "event",
    [
        pb.RunEvent(),
        failed(model="p/one", reason="no answer"),
        failed(model="p/one", reason="TIMEOUT", http_status=1000),
        decided(),
        decided("Risk Policy", blocked_call=CALL),
        decided(*MANY, "plugin-65", blocked_call=CALL),
        pb.RunEvent(hook_decision=pb.HookDecision(blocked_call=CALL)),
        decided(changed_prompt=pb.ChangedPrompt()),
        decided(changed_prompt=pb.ChangedPrompt(removed_tool_count=-1, context_added=True)),
        decided(changed_prompt=pb.ChangedPrompt(removed_tool_count=1025)),
    ],
)
async def test_ReportRunEvents__bad_input_changes_nothing(mesh: Mesh, event: pb.RunEvent) -> None:
    await check_refused(mesh, event)


@pytest.mark.parametrize(("first_number", "count"), [(0, 1), (1_000_000_001, 1), (1, 0), (1, 33)])
async def test_ReportRunEvents__numbers_have_bounds(mesh: Mesh, first_number: int, count: int) -> None:
    held = await held_run(mesh)
    assert await refusal_of(report(mesh, held, first_number, *[BLOCKED] * count)) is Reason.INVALID_REQUEST
    assert await told(mesh, held.session.session_id) == []


async def check_refused(mesh: Mesh, event: pb.RunEvent) -> None:
    """Check that the event is refused, and with it the one before."""
    held = await held_run(mesh)
    assert await refusal_of(report(mesh, held, 1, BLOCKED, event)) is Reason.INVALID_REQUEST
    assert await told(mesh, held.session.session_id) == []
    assert (await mesh.get(held.session.session_id)).latest_run.reported_event_count == 0
