"""Calls that a person must approve: the run is given up, and a later runner makes the call."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.mcp_fixtures import config, stdio
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

WAITING = session_pb2.RUN_STATE_WAITING_APPROVAL
TOOL_RESULT = message_pb2.ROLE_TOOL_RESULT
WRITE = ("call_1", "write_file", '{"path": "a.txt", "content": "hello"}')
POLICY = pb.ApprovalPolicy(tools=["write_*"], timeout=Duration(seconds=90))
TOOLS = ("write_file", "list_files", "ask_user", "sessions_spawn", "sessions_wait")


@asynccontextmanager
async def parked(
    mesh: ScriptedMesh,
    keys: Path,
    directory: Path,
    *calls: tuple[str, str, str],
    policy: pb.ApprovalPolicy | None = POLICY,
    **options: Any,
) -> AsyncIterator[pb.RequestApprovalRequest]:
    """Run a runner until a call of its model waits for a person."""
    mesh.answers.append(calling(*(calls or (WRITE,))))
    mesh.queue_run(tools=TOOLS, approval=policy)
    async with running_runner(mesh, keys, directory, **options):
        await eventually(lambda: mesh.approvals.requests)
        await eventually(lambda: mesh.released_claims)
        yield mesh.approvals.requests[-1]


async def go_on(mesh: ScriptedMesh, *, epoch: int = 2, policy: pb.ApprovalPolicy | None = POLICY) -> None:
    """Queue the run for its next runner, and wait for its answer."""
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=epoch, tools=TOOLS, approval=policy)
    await eventually(lambda: mesh.finalized)


def results(mesh: ScriptedMesh) -> list[message_pb2.Message]:
    return mesh.messages(TOOL_RESULT)


def text_of(result: message_pb2.Message) -> str:
    return "\n".join(block.text.text for block in result.content if block.HasField("text"))


async def test_RequestApproval__the_run_is_given_up_and_the_next_runner_makes_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with parked(mesh, keys, tmp_path) as asked:
        frozen = asked.tool_call
        assert (frozen.tool_name, json.loads(frozen.arguments_json)) == (WRITE[1], json.loads(WRITE[2]))
        assert "path" in json.loads(frozen.parameters_json)["properties"]
        assert asked.reason == "the agent's policy names write_*"
        assert (asked.timeout.seconds, asked.call.index) == (90, 0)
        assert (results(mesh), mesh.released, mesh.failed, mesh.delays) == ([], [], None, [])
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED, decided_by="ada")
        await go_on(mesh)
    [result] = results(mesh)
    assert not result.is_error
    assert "a.txt" in text_of(result)
    assert [block for block in result.content if block.HasField("tool_call")] == []
    assert len(mesh.approvals.requests) == 1, "the approved call is not asked for again"


async def test_RequestApproval__edited_arguments_are_what_is_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with parked(mesh, keys, tmp_path):
        edited = '{"path": "b.txt", "content": "hello"}'
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED, decided_by="ada", edited_arguments_json=edited)
        await go_on(mesh)
    [result] = results(mesh)
    assert "b.txt" in text_of(result)
    [made] = [block.tool_call for block in result.content if block.HasField("tool_call")]
    block = json.loads(made.block_json)
    assert (block["arguments"]["path"], block["approvedBy"]) == ("b.txt", "ada")


@pytest.mark.parametrize(
    ("state", "text", "told"),
    [
        (pb.APPROVAL_STATE_DENIED, "use c.txt", "DENIED: use c.txt"),
        (pb.APPROVAL_STATE_DENIED, "", "DENIED: a person denied it and gave no reason"),
        (pb.APPROVAL_STATE_EXPIRED, "", "DENIED: no person decided in time"),
        (pb.APPROVAL_STATE_WITHDRAWN, "", "INTERRUPTED: you were interrupted while"),
    ],
)
async def test_TakeDecision__a_call_that_was_not_approved_is_not_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, state: Any, text: str, told: str
) -> None:
    async with parked(mesh, keys, tmp_path):
        mesh.approvals.decide(state, text=text)
        await go_on(mesh)
    [result] = results(mesh)
    assert result.is_error
    assert text_of(result).startswith(told)


async def test_TakeDecision__a_call_that_a_runner_before_may_have_made_is_not_made_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with parked(mesh, keys, tmp_path):
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED, was_begun=True)
        await go_on(mesh)
    [result] = results(mesh)
    assert text_of(result).startswith("OUTCOME_UNKNOWN: a person approved this call")


async def test_RequestApproval__calls_before_and_behind_are_made_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The call behind the approved one needs an approval too: the run waits again."""
    calls = (("call_0", "list_files", "{}"), WRITE, ("call_2", "list_files", "{}"), ("call_3", *WRITE[1:]))
    async with parked(mesh, keys, tmp_path, *calls) as asked:
        assert asked.call.index == 1
        assert [result.tool_call_id for result in results(mesh)] == ["call_0"]
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED)
        mesh.queue_run(epoch=2, tools=TOOLS, approval=POLICY)
        await eventually(lambda: len(mesh.approvals.requests) == 2)
        await eventually(lambda: len(mesh.released_claims) == 2)
        assert mesh.approvals.requests[-1].call.index == 3
        mesh.approvals.decide(pb.APPROVAL_STATE_DENIED)
        await go_on(mesh, epoch=3)
    assert [result.tool_call_id for result in results(mesh)] == [f"call_{number}" for number in range(4)]
    assert [result.is_error for result in results(mesh)] == [False, False, False, True]


async def test_RequestApproval__a_plugin_can_demand_it_and_is_not_asked_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.approval_reason = "cfo: too much"
    rewrite = decision_pb2.Rewrite(arguments_json='{"path": "r.txt", "content": "hello"}')
    mesh.hooks.tool_call = decision_pb2.ToolCallDecision(rewrite=rewrite)
    async with parked(mesh, keys, tmp_path, policy=None) as asked:
        assert asked.reason == "cfo: too much"
        assert json.loads(asked.tool_call.arguments_json)["path"] == "r.txt", "as the plugins left it"
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED)
        asked_count = mesh.hooks.order.count("before_tool_call")
        await go_on(mesh, policy=None)
    assert mesh.hooks.order.count("before_tool_call") == asked_count
    assert "r.txt" in text_of(results(mesh)[0])


async def test_RequestApproval__arguments_that_the_tool_refuses_bother_no_person(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers += [calling(("call_1", "write_file", '{"path": 4}')), saying("Done.")]
    mesh.queue_run(tools=TOOLS, approval=POLICY)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.approvals.requests == []
    assert text_of(results(mesh)[0]).startswith("INVALID_ARGUMENTS")


@pytest.mark.parametrize("reason", [Reason.SECRET_NOT_KEPT, Reason.RUN_QUEUE_FULL])
async def test_RequestApproval__a_call_that_cannot_wait_is_refused_to_the_model(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, reason: Reason
) -> None:
    refused = MeshError(reason, "it holds a secret; leave the secret out")
    mesh.refusals["RequestApproval"] = deque([refused])
    mesh.answers += [calling(WRITE), saying("Done.")]
    mesh.queue_run(tools=TOOLS, approval=POLICY)
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.finalized)
    [result] = results(mesh)
    assert text_of(result).startswith("APPROVAL_NOT_POSSIBLE: ")
    assert "leave the secret out" in text_of(result)


async def test_RequestApproval__content_of_files_is_not_kept(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    spawn = json.dumps({"task": "read", "attachments": [{"name": "a.txt", "content": "private"}]})
    mesh.answers += [calling(("call_1", "sessions_spawn", spawn)), saying("Done.")]
    mesh.queue_run(tools=TOOLS, approval=pb.ApprovalPolicy(tools=["*"]))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert (mesh.approvals.requests, mesh.spawns) == ([], {})
    assert text_of(results(mesh)[0]).startswith("APPROVAL_NOT_POSSIBLE")


async def test_RequestApproval__a_spawn_that_hands_over_lost_files_bothers_no_person(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The next runner has the files with which the session was spawned, and no others."""
    mesh.files = {"given.txt": b"given"}
    given = f".spawnmesh/attachments/{mesh.set_id}/given.txt"

    def spawn(tool_call_id: str, *paths: str) -> tuple[str, str, str]:
        files = [{"path": path} for path in paths]
        return tool_call_id, "sessions_spawn", json.dumps({"task": "read", "attachments": files})

    policy = pb.ApprovalPolicy(tools=["sessions_*"])
    calls = (WRITE, spawn("call_2", given, "a.txt"), spawn("call_3", given))
    async with parked(mesh, keys, tmp_path, *calls, policy=policy) as asked:
        assert asked.call.index == 2
        text = text_of(results(mesh)[1])
        assert text.startswith("APPROVAL_NOT_POSSIBLE: a person must approve this call, and files of the")
        assert "attach published files by set_id" in text
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED)
        await go_on(mesh, policy=policy)
    [spawned] = mesh.spawns.values()
    assert [file.data for file in spawned.attachments] == [b"given"]


async def test_RequestApproval__a_heartbeat_that_meets_the_given_up_lease_is_no_loss(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    mesh.approvals.hold_answer = asyncio.Event()
    mesh.answers.append(calling(WRITE))
    mesh.queue_run(tools=TOOLS, approval=POLICY)
    async with running_runner(
        mesh, keys, tmp_path, heartbeat_share=OFTEN, tracer=provider.get_tracer("test")
    ):
        await eventually(lambda: mesh.approvals.late_heartbeat_count)
        mesh.approvals.hold_answer.set()
        await eventually(lambda: mesh.released_claims)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for name in ("invoke_agent default", "execute_tool write_file"):
        assert "error.type" not in (spans[name].attributes or {}), name
        assert "spawnmesh.approval.id" in (spans[name].attributes or {}), name
    assert (mesh.failed, mesh.released, mesh.delays) == (None, [], [])


async def test_ask_user__the_answer_is_the_result_of_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    question = ("call_1", "ask_user", '{"question": "Which colour?", "choices": ["red", "red", "blue"]}')
    async with parked(mesh, keys, tmp_path, question, policy=pb.ApprovalPolicy(tools=["*"])) as asked:
        assert asked.question == pb.Question(text="Which colour?", choices=["red", "blue"])
        assert not asked.HasField("tool_call"), "a question needs no approval"
        mesh.approvals.decide(pb.APPROVAL_STATE_ANSWERED, text="blue")
        await go_on(mesh)
    [result] = results(mesh)
    assert (text_of(result), result.is_error) == ("blue", False)


async def test_behind_a_runner_that_died_the_next_one_asks_for_a_call_that_may_be_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """It died between the answer and the request."""
    mesh.write(calling(WRITE))
    mesh.queue_run(epoch=2, tools=TOOLS, approval=POLICY)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.approvals.requests)
        await eventually(lambda: mesh.released_claims)
    assert results(mesh) == []


@pytest.mark.parametrize(("extra", "seen"), [({}, 3), ({"wait_for_people": False}, 1)])
async def test_sessions_wait__a_child_that_waits_for_a_person_ends_no_wait(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, extra: dict[str, bool], seen: int
) -> None:
    """The time begins anew until the person has decided, unless the model wants it otherwise."""
    states = [WAITING, WAITING, session_pb2.RUN_STATE_RUNNING]
    mesh.child_states += states
    arguments = json.dumps({"session_ids": ["ses_" + "0" * 26], "timeout_seconds": 7, **extra})
    mesh.answers += [calling(("call_1", "sessions_wait", arguments)), saying("Done.")]
    mesh.queue_run(tools=("sessions_wait",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [told] = json.loads(text_of(results(mesh)[0]))["sessions"]
    assert f"RUN_STATE_{told['run_state']}" == session_pb2.RunState.Name(states[seen - 1])
    assert [round(wait.timeout.ToTimedelta().total_seconds()) for wait in mesh.waits] == [7, 10, 10][:seen]


async def test_a_policy_that_came_later_makes_no_call_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The runner that died may have made the call, which its agent let it make then."""
    mesh.write(calling(("call_1", "mcp__weather__order_rain", '{"city": "Oslo"}')))
    mesh.queue_run(epoch=2, mcp_servers=("weather",), approval=pb.ApprovalPolicy(tools=["*"]))
    mesh.answers.append(saying("Done."))
    servers = config(tmp_path, weather=stdio())
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=servers):
        await eventually(lambda: mesh.finalized or mesh.released_claims)
    assert mesh.approvals.requests == []
    assert text_of(results(mesh)[0]).startswith("OUTCOME_UNKNOWN")


async def test_TakeDecision__behind_a_withdrawn_approval_no_call_is_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """A person wants something else: its message comes next."""
    spawn = ("call_2", "sessions_spawn", '{"task": "go on"}')
    async with parked(mesh, keys, tmp_path, WRITE, spawn):
        mesh.approvals.decide(pb.APPROVAL_STATE_WITHDRAWN)
        await go_on(mesh)
    assert mesh.spawns == {}
    assert [text_of(result).split(":")[0] for result in results(mesh)] == ["INTERRUPTED", "INTERRUPTED"]


async def test_TakeDecision__arguments_that_differ_by_their_types_alone_are_other_arguments(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    arguments = {"session_ids": ["ses_" + "0" * 26], "timeout_seconds": 1}
    wait, policy = ("call_1", "sessions_wait", json.dumps(arguments)), pb.ApprovalPolicy(tools=["*"])
    async with parked(mesh, keys, tmp_path, wait, policy=policy):
        edited = json.dumps({**arguments, "timeout_seconds": 1.0})
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED, decided_by="ada", edited_arguments_json=edited)
        await go_on(mesh, policy=policy)
    [made] = [block.tool_call for block in results(mesh)[0].content if block.HasField("tool_call")]
    assert json.dumps(json.loads(made.block_json)["arguments"]) == edited


async def test_TakeDecision__what_was_approved_is_made_although_the_context_left_it_out(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with parked(mesh, keys, tmp_path):
        [block] = [block for block in mesh.entries[-1].body.message.content if block.HasField("tool_call")]
        block.tool_call.block_json = json.dumps({"type": "toolCall", "arguments": "[left out: 16 bytes]"})
        mesh.approvals.decide(pb.APPROVAL_STATE_APPROVED, decided_by="ada")
        await go_on(mesh)
    [result] = results(mesh)
    assert (result.is_error, "a.txt" in text_of(result)) == (False, True)


async def test_RequestApproval__behind_a_refused_request_a_lost_lease_still_stops_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["RequestApproval"] = deque([MeshError(Reason.SECRET_NOT_KEPT, "it holds a secret")])
    mesh.answers += [calling(WRITE), saying("Done.")]

    def lose_lease() -> None:
        if len(mesh.prompts) == 2:
            mesh.hold_model, mesh.lease_lost = asyncio.Event(), True

    mesh.on_generate = lose_lease
    mesh.queue_run(tools=TOOLS, approval=POLICY)
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.model_cancelled)
        await eventually(lambda: mesh.released_claims)
    assert mesh.finalized is None


async def test_RequestApproval__long_reasons_are_cut(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.approval_reason = "cfo: " + "ä" * 2045
    async with parked(mesh, keys, tmp_path) as asked:
        assert len(asked.reason.encode()) in (4095, 4096)
        assert asked.reason.startswith("the agent's policy names write_*; cfo: ")


async def test_ask_user__a_plugin_that_wants_an_approval_of_a_question_gets_the_question(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.approval_reason = "cfo: always"
    async with parked(mesh, keys, tmp_path, ("call_1", "ask_user", '{"question": "Why?"}')) as asked:
        assert asked.question.text == "Why?"


@pytest.mark.parametrize(
    ("tool", "trusted", "asks"),
    [("forecast", True, False), ("forecast", False, True), ("order_rain", True, True)],
)
async def test_RequestApproval__tools_of_mcp_servers_that_may_destroy_need_it_if_the_policy_says_so(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, tool: str, trusted: bool, asks: bool
) -> None:
    """A server's annotations count only if the operator trusts them."""
    mesh.answers += [calling(("call_1", f"mcp__weather__{tool}", '{"city": "Oslo"}')), saying("Done.")]
    policy = pb.ApprovalPolicy(destructive_mcp_tools=True)
    mesh.queue_run(mcp_servers=("weather",), approval=policy)
    servers = config(tmp_path, weather=stdio(trust_annotations=trusted))
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=servers):
        await eventually(lambda: mesh.finalized or mesh.released_claims)
    assert [request.tool_call.tool_name for request in mesh.approvals.requests] == (
        [f"mcp__weather__{tool}"] if asks else []
    )
    assert len(results(mesh)) == (0 if asks else 1)
