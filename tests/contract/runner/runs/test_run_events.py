"""A runner among scripted peers: it reports what happened to its run, at no cost of the run."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import run_event_pb2
from spawnmesh_client import run_events
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

LIMITED = generation_pb2.Attempt(
    number=1, model="scripted/zero", reason=generation_pb2.FAILOVER_REASON_RATE_LIMIT, http_status=429
)
OVER_BUDGET = MeshError(Reason.SESSION_BUDGET_EXCEEDED, "a limit is reached", facts={"limits": "MODEL_CALLS"})
WRITE = ("write_file", '{"path": "a.txt", "content": "x"}')
BROKEN = MeshError(
    Reason.STREAM_BROKEN,
    "the answer broke off",
    facts={"transient": "true", "model": "scripted/one", "failover_reason": "TIMEOUT"},
)


async def test_failed_attempts_and_broken_streams_are_reported_in_order(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.run_events.before_answer = (LIMITED,)
    mesh.answers.extend([BROKEN, calling(("c1", "list_files", "{}")), saying("Done.")])
    mesh.refusals["ReportRunEvents"] = deque([unavailable("session")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: len(mesh.run_events.failures) == 4)
    limited = ("scripted/zero", "RATE_LIMIT", 429)
    assert mesh.run_events.failures == [
        (1, *limited), (2, "scripted/one", "TIMEOUT", 0), (3, *limited), (4, *limited),
    ]  # fmt: skip


async def test_an_answer_is_offered_behind_the_failures_before_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may tell nothing more when it has ended."""
    monkeypatch.setattr(run_events, "_LAST_CALL_SECONDS", 60.0)  # The machine may be slow.
    mesh.run_events.before_answer, mesh.run_events.seconds = (LIMITED,), 0.5
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.run_events.early_count == 1


async def test_a_refused_report_delays_no_answer(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.run_events.before_answer = (LIMITED,)
    mesh.answers.append(saying("Done."))
    mesh.refusals["ReportRunEvents"] = deque([MeshError(Reason.RUN_STATE, "no")])
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.run_events.failures == []


async def test_a_further_runner_goes_on_behind_the_failures_that_are_known(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.run_events.before_answer = (LIMITED,)
    mesh.answers.append(saying("Done."))
    mesh.run_events.known_count = 7
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: mesh.run_events.failures)
    assert mesh.run_events.failures == [(8, "scripted/zero", "RATE_LIMIT", 429)]


def in_words(mesh: ScriptedMesh) -> list[tuple[str, list[str], str]]:
    """Return the kind, the plugins and the subject of each decision that was reported."""
    return [
        (one.WhichOneof("decision"), list(one.plugins), subject_of(one)) for one in mesh.run_events.decisions
    ]


def subject_of(decision: run_event_pb2.HookDecision) -> str:
    decided: Any = getattr(decision, str(decision.WhichOneof("decision")))
    return str(getattr(decided, "tool_name", "") or getattr(decided, "model", ""))


async def test_decisions_of_plugins_are_reported_in_order(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [kind for _, kind in event_pb2.HookKind.items() if kind]
    mesh.hooks.model = decision_pb2.ModelDecision(model="small\x07")
    mesh.hooks.prompt = decision_pb2.PromptDecision(
        system_prompt="Be kind.", context="It is Monday.", tools=decision_pb2.ToolList(names=["write_file"])
    )
    mesh.hooks.tool_call = decision_pb2.ToolCallDecision(block=decision_pb2.Block(reason="not on Mondays"))
    mesh.answers.extend([calling(("c1", *WRITE), ("c2", "unknown", "{}")), saying("Done.")])
    mesh.queue_run(tools=("write_file", "list_files"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: len(mesh.run_events.numbered) == 5)
    asked = [
        ("chosen_model", ["chooser"], "small\ufffd"), ("changed_prompt", ["brand", "memory"], ""),
    ]  # fmt: skip
    assert in_words(mesh) == [*asked, ("blocked_call", ["gate"], "write_file"), *asked]
    assert [number for number, _ in mesh.run_events.numbered] == [1, 2, 3, 4, 5]
    assert mesh.run_events.decisions[1].changed_prompt == run_event_pb2.ChangedPrompt(
        system_prompt_replaced=True, context_added=True, removed_tool_count=1
    )


async def test_plugins_that_change_nothing_are_not_reported(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [kind for _, kind in event_pb2.HookKind.items() if kind]
    mesh.hooks.model = decision_pb2.ModelDecision(model="scripted/one")
    mesh.hooks.prompt = decision_pb2.PromptDecision(
        system_prompt="Be brief.", tools=decision_pb2.ToolList(names=["list_files", "ask_user"])
    )
    mesh.hooks.tool_call = decision_pb2.ToolCallDecision(rewrite=decision_pb2.Rewrite(arguments_json="{}"))
    mesh.answers.extend([calling(("c1", "list_files", "{ }")), saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    mesh.run_events.before_answer = (LIMITED,)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: len(mesh.run_events.numbered) == 2)
    assert [type(one).__name__ for one in mesh.hooks.asked].count("BeforePromptBuildEvent") == 2
    assert mesh.run_events.decisions == []
    assert [number for number, *_ in mesh.run_events.failures] == [1, 2], "nothing else had a number"


async def test_a_call_that_is_rewritten_and_needs_an_approval_is_reported_before_the_run_is_given_up(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may tell nothing more when a person decides."""
    monkeypatch.setattr(run_events, "_LAST_CALL_SECONDS", 60.0)  # The machine may be slow.
    mesh.run_events.seconds = 0.2
    mesh.hooks.active, mesh.hooks.approval_reason = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL], "cfo: too much"
    rewrite = decision_pb2.Rewrite(arguments_json='{"path": "b.txt", "content": "x"}')
    mesh.hooks.tool_call = decision_pb2.ToolCallDecision(rewrite=rewrite)
    mesh.answers.append(calling(("c1", *WRITE)))
    mesh.queue_run(tools=("write_file",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.approvals.requests)
        assert in_words(mesh) == [
            ("rewritten_call", ["gate", "scrubber"], "write_file"), ("call_to_approve", ["cfo"], "write_file"),
        ]  # fmt: skip


async def test_a_question_for_a_person_needs_no_approval(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active, mesh.hooks.approval_reason = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL], "cfo: too much"
    mesh.answers.append(calling(("c1", "ask_user", '{"question": "Which one?"}')))
    mesh.queue_run(tools=("ask_user",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.approvals.requests)
        await eventually(lambda: mesh.released_claims)
    assert mesh.run_events.requests == []


async def test_failures_are_reported_before_the_run_waits_for_its_budget(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "_LAST_CALL_SECONDS", 60.0)  # The machine may be slow.
    mesh.run_events.seconds, mesh.run_events.before_answer = 0.2, (LIMITED,)
    mesh.answers.extend([calling(("c1", "list_files", "{}")), OVER_BUDGET])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.released_claims)
    assert [number for number, *_ in mesh.run_events.failures] == [1, 2]
