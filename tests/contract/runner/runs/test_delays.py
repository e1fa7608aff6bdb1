"""A run that meets an outage goes back to the queue; one that can never succeed fails."""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_TOOL_CALL
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_plugin import proceed
from spawnmesh_runner.clients import retry

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runners give up after a tenth of a second."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)


def failing(reason: Reason, *, is_transient: str, retry_after_seconds: float = 0.0) -> MeshError:
    return MeshError(
        reason, "no answer", retry_after_seconds=retry_after_seconds, facts={"is_transient": is_transient}
    )


async def ended(mesh: ScriptedMesh, keys: Path, tmp_path: Path, **settings: Any) -> None:
    """Run until the run is delayed or has failed, and its workspace is gone."""
    async with running_runner(mesh, keys, tmp_path, **settings):
        await eventually(lambda: mesh.delays or mesh.failed)
        await eventually(lambda: mesh.released_claims)
    assert list(tmp_path.iterdir()) == []


def away() -> deque[MeshError]:
    return deque(unavailable("PostgreSQL", retry_after_seconds=0.01) for _ in range(1000))


def cut_off_window(mesh: ScriptedMesh) -> None:
    mesh.refusals["OpenWindow"] = away()


def cut_off_appends(mesh: ScriptedMesh) -> None:
    mesh.refusals["AppendEntries"] = away()


def cut_off_session(mesh: ScriptedMesh) -> None:
    mesh.outcomes.extend(away())


def cut_off_router(mesh: ScriptedMesh) -> None:
    mesh.answers.extendleft(away())


def refuse_model(mesh: ScriptedMesh) -> None:
    mesh.answers.append(MeshError(Reason.NOT_FOUND, "no such model"))


@pytest.mark.parametrize("cut_off", [cut_off_window, cut_off_appends, cut_off_session, cut_off_router])
async def test_ReleaseRun__a_run_whose_peer_is_away_is_delayed(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, cut_off: Callable[[ScriptedMesh], None]
) -> None:
    mesh.answers.append(saying("Done."))
    cut_off(mesh)
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    [delay] = mesh.delays
    assert (delay.reason, mesh.failed, mesh.released) == (reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, None, [1])
    assert delay.message == "PostgreSQL does not answer; call again later"


async def test_ReleaseRun__candidates_that_cool_down_delay_the_run_for_as_long_as_they_say(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(failing(Reason.ALL_CANDIDATES_FAILED, is_transient="true", retry_after_seconds=30))
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    [delay] = mesh.delays
    assert (delay.reason, delay.min_pause.ToMilliseconds()) == (
        reason_pb2.REASON_ALL_CANDIDATES_FAILED,
        30_000,
    )
    assert mesh.failed is None


async def test_ReleaseRun__a_gate_that_is_away_delays_the_run_and_the_draft_is_kept(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    mesh.outcomes.append(failing(Reason.PLUGIN_FAILED, is_transient="true", retry_after_seconds=1))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.delays)
        mesh.finalized = None
        mesh.queue_run(epoch=2)
        await eventually(lambda: mesh.finalized)
    assert mesh.finalized is not None
    assert (mesh.finalized.draft_text, len(mesh.prompts), mesh.failed) == ("Done.", 1, None)


async def test_ReleaseRun__a_gate_of_tool_calls_that_is_away_delays_the_run_and_the_call_is_kept(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.tool_call = failing(Reason.PLUGIN_FAILED, is_transient="true", retry_after_seconds=1)
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.delays)
        assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
        mesh.hooks.tool_call = proceed()
        mesh.queue_run(epoch=2, tools=("list_files",))
        await eventually(lambda: mesh.finalized)
    assert [delay.reason for delay in mesh.delays] == [reason_pb2.REASON_PLUGIN_FAILED]
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    assert (result.is_error, len(mesh.prompts), mesh.failed) == (False, 2, None)


@pytest.mark.parametrize("reason", [Reason.ALL_CANDIDATES_FAILED, Reason.PLUGIN_FAILED])
async def test_FailRun__what_would_fail_again_fails_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, reason: Reason
) -> None:
    mesh.answers.append(failing(reason, is_transient="false"))
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    assert mesh.failed is not None
    assert (mesh.failed.reason, mesh.delays) == (reason_number(reason), [])


async def test_ReleaseRun__a_pause_beyond_the_deadline_is_half_of_the_time_that_is_left(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    beyond = failing(Reason.ALL_CANDIDATES_FAILED, is_transient="true", retry_after_seconds=601)
    mesh.answers.append(beyond)
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    [delay] = mesh.delays
    assert (delay.reason, mesh.failed) == (reason_pb2.REASON_ALL_CANDIDATES_FAILED, None)
    assert 200 < delay.min_pause.seconds <= 300


async def test_FailRun__a_model_call_that_takes_all_its_time_fails_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(MeshError(Reason.DEADLINE_EXCEEDED, "no answer in time"))
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    assert mesh.failed is not None
    assert (mesh.failed.reason, mesh.delays) == (reason_pb2.REASON_DEADLINE_EXCEEDED, [])


async def test_ReleaseRun__a_model_that_was_called_late_is_called_again_later(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.router_wait_seconds = 1.0  # More than a tenth of the time of the call.
    mesh.answers.append(MeshError(Reason.DEADLINE_EXCEEDED, "no answer in time"))
    mesh.queue_run()
    await ended(mesh, keys, tmp_path, generate_timeout_seconds=8.0)
    assert ([delay.reason for delay in mesh.delays], mesh.failed) == (
        [reason_pb2.REASON_DEADLINE_EXCEEDED],
        None,
    )


async def test_ReleaseRun__a_call_in_which_no_model_was_called_is_made_again_later(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["Generate"] = deque([MeshError(Reason.DEADLINE_EXCEEDED, "no whole message in time")])
    mesh.queue_run()
    await ended(mesh, keys, tmp_path)
    assert ([delay.reason for delay in mesh.delays], mesh.failed) == (
        [reason_pb2.REASON_DEADLINE_EXCEEDED],
        None,
    )


async def test_ReleaseRun__a_delay_is_reported_again_while_the_session_service_is_away(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(failing(Reason.ALL_CANDIDATES_FAILED, is_transient="true"))
    mesh.refusals["ReleaseRun"] = away()
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        # More tries than the time for other calls would allow.
        await eventually(lambda: len(mesh.refusals["ReleaseRun"]) <= 995)
        mesh.refusals["ReleaseRun"].clear()
        await eventually(lambda: mesh.delays)
    assert [delay.reason for delay in mesh.delays] == [reason_pb2.REASON_ALL_CANDIDATES_FAILED]


async def test_ReleaseRun__a_run_that_was_lost_is_not_delayed(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    mesh.refusals["AppendEntries"] = deque([MeshError(Reason.WRITER_CLAIM_LOST, "another epoch")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.released_claims)
    assert (mesh.delays, mesh.failed, mesh.released) == ([], None, [])


async def test_ReleaseRun__a_run_whose_lease_ran_out_in_an_outage_is_released_after_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    mesh.hold_model = asyncio.Event()
    mesh.refusals["ReleaseRun"] = away()
    mesh.queue_run(lease_seconds=2.0)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.refusals["HeartbeatRun"] = away()
        # More tries than the time for other calls would allow: the outage is longer than that.
        await eventually(lambda: len(mesh.refusals["ReleaseRun"]) <= 997)
        assert (mesh.delays, mesh.failed, mesh.finalized) == ([], None, None)
        mesh.refusals["ReleaseRun"].clear()
        await eventually(lambda: mesh.delays)
    [delay] = mesh.delays
    assert delay.reason == reason_pb2.REASON_DEPENDENCY_UNAVAILABLE
    assert (mesh.released, mesh.model_cancelled) == ([1], True)


async def test_ReleaseRun__a_run_that_another_runner_has_after_an_outage_is_left_to_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    mesh.hold_model = asyncio.Event()
    mesh.refusals["ReleaseRun"] = deque([MeshError(Reason.RUN_LEASE_LOST, "epoch 2 has it")])
    mesh.queue_run(lease_seconds=2.0)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        mesh.refusals["HeartbeatRun"] = away()
        await eventually(lambda: mesh.released_claims)
    assert not mesh.refusals["ReleaseRun"]
    assert (mesh.delays, mesh.failed, mesh.released) == ([], None, [])


@pytest.mark.parametrize(
    ("cut_off", "reason"), [(cut_off_router, Reason.DEPENDENCY_UNAVAILABLE), (refuse_model, Reason.NOT_FOUND)]
)
async def test_the_span_of_an_attempt_without_an_answer_is_an_error_with_its_reason(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, cut_off: Callable[[ScriptedMesh], None], reason: Reason
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    cut_off(mesh)
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.delays or mesh.failed)
        await eventually(lambda: [span for span in exporter.get_finished_spans() if is_attempt(span)])
    [attempt] = [span for span in exporter.get_finished_spans() if is_attempt(span)]
    assert attempt.status.status_code is StatusCode.ERROR
    assert (attempt.attributes or {})["error.type"] == reason.value
    [report] = [
        span for span in exporter.get_finished_spans() if span.name.endswith(("/FailRun", "/ReleaseRun"))
    ]
    assert report.parent is not None
    assert report.parent.span_id == attempt.context.span_id


def is_attempt(span: ReadableSpan) -> bool:
    return span.name.startswith("invoke_agent ")
