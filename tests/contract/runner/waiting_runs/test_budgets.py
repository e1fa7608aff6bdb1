"""Model calls that a budget refuses: the run is given up, and a later runner makes the call."""

import asyncio
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients import retry

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

RUNNING, WAITING = session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_WAITING_BUDGET
NO_CHILD = "ses_" + "0" * 26


def refused(**options: Any) -> MeshError:
    return MeshError(
        Reason.SESSION_BUDGET_EXCEEDED, "a limit is reached", facts={"limits": "MODEL_CALLS"}, **options
    )


def priced(answer: message_pb2.Message, cost_micros: int, version: str) -> message_pb2.Message:
    answer.usage.cost_micros, answer.usage.price_version = cost_micros, version
    return answer


def listing(number: int) -> message_pb2.Message:
    """Return an answer that calls a tool, unlike the answers of other numbers."""
    return calling((f"l{number}", "list_files", json.dumps({"path": f"folder-{number}"})))


def refuse_call(mesh: ScriptedMesh, number: int, count: int = 1, **options: Any) -> None:
    """Let the router refuse the model call of this number, from 1, and the next ones."""

    def refuse_next() -> None:
        if len(mesh.prompts) == number - 1:
            mesh.refusals["Generate"] = deque(refused(**options) for _ in range(count))

    mesh.on_generate = refuse_next
    refuse_next()


def tracing() -> tuple[InMemorySpanExporter, TracerProvider]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


async def test_AwaitBudget__the_run_is_given_up_and_the_next_runner_makes_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The refused turn leaves nothing in the transcript, and is no turn of the run."""
    mesh.answers += [priced(listing(1), 30, "v1"), priced(listing(2), 12, "v2")]
    refuse_call(mesh, 3)
    mesh.queue_run(tools=("list_files",), max_turns=3)
    exporter, provider = tracing()
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.released_claims)
        [asked] = mesh.budgets.requests
        assert (asked.epoch, asked.usage.cost_micros, asked.usage.price_version) == (1, 42, "v2")
        assert asked.usage.input_token_count == 20
        roles = [entry.body.message.role for entry in mesh.entries]
        answer, result = message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
        assert roles == [message_pb2.ROLE_USER, *[answer, result] * 2]
        assert (mesh.released, mesh.delays, mesh.failed, mesh.interrupted) == ([], [], None, None)
        mesh.answers.append(priced(saying("Done."), 8, ""))
        mesh.queue_run(epoch=2, tools=("list_files",), max_turns=3)
        await eventually(lambda: mesh.finalized or mesh.failed)
        await eventually(lambda: len(exporter.get_finished_spans()) > len(mesh.released_claims))
    assert mesh.finalized is not None
    assert (mesh.finalized.draft_text, mesh.finalized.is_last_turn) == ("Done.", True)
    usage = mesh.finalized.usage
    assert (usage.input_token_count, usage.cost_micros, usage.price_version) == (30, 50, "v2")
    runs = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent default"]
    told = [dict(span.attributes or {}) for span in runs]
    assert [one["spawnmesh.run.cost_micros"] for one in told] == [42, 50]
    assert told[0]["spawnmesh.budget.session_id"] == mesh.budgets.session_id
    assert "error.type" not in told[0]


async def test_Generate__failed_attempts_cost_too(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    broken = MeshError(Reason.STREAM_BROKEN, "it broke", facts={"used_cost_micros": "500"})
    mesh.answers += [priced(listing(1), 30, "v1"), broken, broken]
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert (mesh.failed.usage.cost_micros, mesh.failed.usage.price_version) == (1030, "v1")


async def test_InterruptRun__the_cost_until_then_is_reported(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers += [priced(listing(1), 30, "v1")]

    def hold_next() -> None:
        mesh.hold_model = asyncio.Event() if len(mesh.prompts) == 2 else None

    mesh.on_generate = hold_next
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.hold_model)
        mesh.change(run_pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    assert mesh.interrupted is not None
    assert (mesh.interrupted.usage.cost_micros, mesh.interrupted.usage.price_version) == (30, "v1")


async def test_AwaitBudget__the_same_call_is_made_again_if_there_is_room_by_then(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """It is one turn, however often it is refused. Plugins see one prompt."""
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_MODEL_RESOLVE]
    mesh.budgets.states += [RUNNING, session_pb2.RUN_STATE_FINALIZING, RUNNING]
    refuse_call(mesh, 1, count=3)
    mesh.answers.append(saying("Done."))
    mesh.queue_run(max_turns=1)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert (len(mesh.prompts), len(mesh.budgets.requests)) == (4, 3)
    assert all(prompt == mesh.prompts[0] for prompt in mesh.prompts)
    assert mesh.hooks.order.count("before_model_resolve") == 1
    assert len(mesh.window_seqs) == 1


async def test_AwaitBudget__behind_room_that_came_a_lost_lease_still_stops_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.budgets.states.append(RUNNING)
    mesh.refusals["Generate"] = deque([refused()])

    def lose_lease() -> None:
        mesh.hold_model, mesh.lease_lost = asyncio.Event(), True

    mesh.on_generate = lose_lease
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.model_cancelled)
        await eventually(lambda: mesh.released_claims)
    assert (mesh.finalized, mesh.failed, len(mesh.budgets.requests)) == (None, None, 1)


async def test_AwaitBudget__before_the_call_is_made_again_there_is_a_pause_that_an_interrupt_ends(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "LONGEST_PAUSE_SECONDS", 600.0)
    mesh.budgets.states.append(RUNNING)
    refuse_call(mesh, 1, retry_after_seconds=600.0)
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.budgets.requests)
        mesh.change(run_pb.INTERRUPT_RUN)
        await eventually(lambda: mesh.interrupted)
    assert (len(mesh.prompts), mesh.failed, mesh.finalized) == (1, None, None)


@pytest.mark.parametrize(
    ("state", "error_type"),
    [
        (session_pb2.RUN_STATE_INTERRUPTED, None),
        (session_pb2.RUN_STATE_FAILED, "SESSION_BUDGET_EXCEEDED"),
        (session_pb2.RUN_STATE_KILLED, None),
        (session_pb2.RUN_STATE_QUEUED, None),
    ],
)
async def test_AwaitBudget__a_run_that_has_ended_or_was_queued_again_is_left_alone(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, state: Any, error_type: str | None
) -> None:
    mesh.budgets.states.append(state)
    refuse_call(mesh, 1)
    mesh.queue_run()
    exporter, provider = tracing()
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.released_claims)
    assert (mesh.interrupted, mesh.failed, mesh.released, mesh.delays) == (None, None, [], [])
    [run] = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent default"]
    assert (run.attributes or {}).get("error.type") == error_type
    assert list(tmp_path.iterdir()) == []


async def test_AwaitBudget__a_run_that_another_runner_has_by_then_is_left_alone(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The answer to the first request was lost, and the limit was raised before the second one."""
    mesh.budgets.states.append(RUNNING)
    mesh.budgets.epoch = 2
    refuse_call(mesh, 1)
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.released_claims)
    assert (len(mesh.prompts), mesh.failed, mesh.released, mesh.delays) == (1, None, [], [])


async def test_AwaitBudget__is_repeated_while_the_session_service_is_away(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["AwaitBudget"] = deque([unavailable("session", retry_after_seconds=0.01)] * 3)
    refuse_call(mesh, 1)
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.released_claims)
    assert (len(mesh.budgets.requests), mesh.delays) == (1, [])


async def test_AwaitBudget__a_heartbeat_that_meets_the_given_up_lease_is_no_loss(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.budgets.hold_answer = asyncio.Event()
    refuse_call(mesh, 1)
    mesh.queue_run()
    exporter, provider = tracing()
    async with running_runner(
        mesh, keys, tmp_path, heartbeat_share=OFTEN, tracer=provider.get_tracer("test")
    ):
        await eventually(lambda: mesh.approvals.late_heartbeat_count)
        mesh.budgets.hold_answer.set()
        await eventually(lambda: mesh.released_claims)
    [run] = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent default"]
    attributes = run.attributes or {}
    assert "error.type" not in attributes
    assert attributes["spawnmesh.budget.session_id"] == mesh.budgets.session_id
    assert (mesh.failed, mesh.released, mesh.delays) == (None, [], [])


async def test_AwaitBudget__if_too_many_runs_wait_the_run_is_delayed_and_tried_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    full = MeshError(Reason.RUN_QUEUE_FULL, "too many wait", retry_after_seconds=2.0)
    mesh.refusals["AwaitBudget"] = deque([full])
    refuse_call(mesh, 1)
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.delays)
        mesh.answers.append(saying("Done."))
        mesh.queue_run(epoch=2)
        await eventually(lambda: mesh.finalized)
    [delay] = mesh.delays
    assert (delay.reason, delay.min_pause.seconds) == (reason_pb2.REASON_RUN_QUEUE_FULL, 2)
    assert mesh.failed is None


@pytest.mark.parametrize(("extra", "seen"), [({}, 3), ({"wait_for_people": False}, 1)])
async def test_sessions_wait__a_child_that_waits_for_its_own_budget_ends_no_wait(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, extra: dict[str, bool], seen: int
) -> None:
    mesh.child_states += [WAITING, WAITING, RUNNING]
    arguments = json.dumps({"session_ids": [NO_CHILD], "timeout_seconds": 7, **extra})
    mesh.answers += [calling(("c1", "sessions_wait", arguments)), saying("Done.")]
    mesh.queue_run(tools=("sessions_wait",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    [told] = json.loads(result.content[0].text.text)["sessions"]
    assert told["run_state"] == ("RUNNING" if seen == 3 else "WAITING_BUDGET")
    wanted = f"a higher limit of the budget of {mesh.budgets.session_id}"
    assert told.get("waits_for") == (None if seen == 3 else wanted)
    assert (len(mesh.waits), mesh.budgets.requests) == (seen, [])


async def test_sessions_wait__a_run_that_shares_the_budget_waits_for_it_without_a_runner(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """It would time out otherwise, while its child waits for a person. The wait is made again."""
    mesh.budgets.shared = (mesh.budgets.session_id,)
    mesh.child_states.append(WAITING)
    wait = ("c1", "sessions_wait", json.dumps({"session_ids": [NO_CHILD], "timeout_seconds": 7}))
    mesh.answers += [calling(wait), saying("Done.")]
    mesh.queue_run(tools=("sessions_wait",))
    exporter, provider = tracing()
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.released_claims)
        assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
        mesh.queue_run(epoch=2, tools=("sessions_wait",))
        await eventually(lambda: mesh.finalized)
    assert (len(mesh.budgets.requests), len(mesh.prompts), mesh.failed) == (1, 2, None)
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    assert json.loads(result.content[0].text.text)["all_done"]
    first = next(span for span in exporter.get_finished_spans() if span.name == "execute_tool sessions_wait")
    assert dict(first.attributes or {})["spawnmesh.budget.session_id"] == mesh.budgets.session_id
    assert "spawnmesh.approval.id" not in (first.attributes or {})


async def test_sessions_wait__if_the_shared_budget_has_room_by_then_the_wait_goes_on(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.budgets.shared = (mesh.budgets.session_id,)
    mesh.budgets.states.append(RUNNING)
    mesh.child_states.append(WAITING)
    mesh.answers += [
        calling(("c1", "sessions_wait", json.dumps({"session_ids": [NO_CHILD], "timeout_seconds": 7}))),
        saying("Done."),
    ]
    mesh.queue_run(tools=("sessions_wait",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.released_claims)
    assert (len(mesh.budgets.requests), len(mesh.waits), len(mesh.prompts)) == (1, 2, 2)


async def test_sessions_wait__behind_a_refused_request_a_lost_lease_still_stops_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.budgets.shared = (mesh.budgets.session_id,)
    mesh.refusals["AwaitBudget"] = deque([MeshError(Reason.RUN_STATE, "not now")])
    mesh.child_states.append(WAITING)
    wait = ("c1", "sessions_wait", json.dumps({"session_ids": [NO_CHILD], "timeout_seconds": 7}))
    mesh.answers.append(calling(wait))

    def lose_lease() -> None:
        if len(mesh.prompts) == 2:
            mesh.hold_model, mesh.lease_lost = asyncio.Event(), True

    mesh.on_generate = lose_lease
    mesh.queue_run(tools=("sessions_wait",))
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.model_cancelled)
        await eventually(lambda: mesh.released_claims)
    assert (mesh.finalized, mesh.failed) == (None, None)


async def test_sessions_spawn__a_child_gets_its_budget(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    budget = {"max_tokens": 200_000, "max_cost": 0.29, "max_model_calls": 40, "max_minutes": 1.5}
    bad = json.dumps({"task": "Count.", "budget": {"max_cost": 0}})
    good = json.dumps({"task": "Count.", "budget": budget})
    mesh.answers += [
        calling(("c1", "sessions_spawn", bad), ("c2", "sessions_spawn", good)),
        saying("Done."),
    ]
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [asked] = mesh.spawns.values()
    sent = asked.budget
    assert (sent.max_token_count, sent.max_cost_micros, sent.max_model_call_count) == (200_000, 290_000, 40)
    assert (sent.max_run_time.seconds, sent.HasField("max_wait")) == (90, False)
    results = [result.content[0].text.text for result in mesh.messages(message_pb2.ROLE_TOOL_RESULT)]
    assert results[0].startswith("INVALID_ARGUMENTS: budget.max_cost: ")
