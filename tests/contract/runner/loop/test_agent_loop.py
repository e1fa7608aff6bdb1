"""A runner among scripted peers: from the claim to an accepted answer."""

import hashlib
import json
import os
from collections import deque
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_client.turn_messages import text_message
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import SPAWN_SPAN_ID, TRACE_ID, ScriptedMesh
from tests.support.waiting import eventually

USER, ASSISTANT, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
SET_ID = "att_" + "0" * 26


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """Return a mesh whose only session has a task in its transcript."""
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.write(text_message(USER, "Sum up the file."), epoch=0)
    return scripted


def texts(messages: list[message_pb2.Message]) -> list[str]:
    return ["".join(block.text.text for block in message.content) for message in messages]


async def test_ClaimRuns__a_run_reads_its_attachment_and_answers(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.files = {"report.txt": b"forty-two\n", "empty.bin": b""}
    path = f".spawnmesh/attachments/{mesh.set_id}/report.txt"
    mesh.answers.extend([calling(("c1", "read_file", json.dumps({"path": path}))), saying("It says 42.")])
    mesh.queue_run(tools=("read_file",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: not os.listdir(tmp_path))
    [result] = mesh.messages(RESULT)
    facts, text = (block.text.text for block in result.content)
    assert (json.loads(facts)["bytes"], text) == (10, "forty-two\n"), "the lines of the block are the file's"
    assert not result.is_error
    assert [message.role for message in mesh.prompts[1].messages] == [USER, ASSISTANT, RESULT]
    assert texts(mesh.messages(ASSISTANT)) == ["", "It says 42."]
    assert {(entry.writer.run_id, entry.writer.epoch) for entry in mesh.entries[1:]} == {(mesh.run_id, 1)}


async def test_Generate__has_the_agents_prompt_models_and_tools(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=("read_file", "unknown_tool"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [prompt] = mesh.prompts
    assert (prompt.model, list(prompt.fallback_models)) == ("scripted/one", ["scripted/two"])
    assert (prompt.system_prompt, prompt.session_id) == ("Be brief.", mesh.session_id)
    assert [tool.name for tool in prompt.tools] == ["read_file"]
    assert texts(list(prompt.messages)) == ["Sum up the file."]
    assert mesh.finalized is not None
    assert (mesh.finalized.draft_text, mesh.finalized.draft_entry_id) == ("Done.", mesh.entries[-1].entry_id)
    assert mesh.finalized.usage == message_pb2.TokenUsage(input_token_count=10, output_token_count=2)
    assert mesh.failed is None


async def test_FinalizeRun__a_revision_is_followed(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.answers.extend([saying("Too long."), saying("Short.")])
    mesh.outcomes.append(
        pb.FinalizeRunResponse(revise=pb.Revision(instruction="Be shorter.", number=1, max_revision_count=3))
    )
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "Short."
    assert mesh.finalized.usage.output_token_count == 4
    assert texts(list(mesh.prompts[1].messages)) == ["Sum up the file.", "Be shorter."]


async def test_FinalizeRun__pending_messages_are_read_first(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend([saying("Early."), saying("With the news.")])
    mesh.outcomes.append(pb.FinalizeRunResponse(messages_pending=pb.MessagesPending(count=1)))
    mesh.queue_run()

    class LateInbox(list[pb.InboxMessage]):
        """An inbox that is empty until the first draft is offered."""

        def __getitem__(self, index):  # type: ignore[no-untyped-def]  # only ever sliced
            return list(self)[index] if not mesh.outcomes else []

    mesh.inbox = LateInbox(
        [pb.InboxMessage(key="message:v1:m1", append_request_id="m1 for good", text="News.")]
    )
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    assert texts(list(mesh.prompts[1].messages)) == ["Sum up the file.", "Early.", "News."]
    assert mesh.inbox == []
    assert "m1 for good" in mesh.appended
    assert "message:v1:m1" not in mesh.appended


async def test_AppendEntries__a_failed_tool_is_an_error_result_without_host_paths(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    calls = [
        ("c1", "read_file", '{"path": "../../etc/passwd"}'),
        ("c2", "read_file", '{"path": "missing.txt"}'),
        ("c3", "write_file", '{"path": "f", "content": "x"}'),
        ("c4", "read_file", '{"pth": "f"}'),
    ]
    mesh.answers.extend([calling(*calls), saying("I could not.")])
    mesh.queue_run(tools=("read_file",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    results = mesh.messages(RESULT)
    assert [(result.tool_call_id, result.tool_name, result.is_error) for result in results] == [
        ("c1", "read_file", True),
        ("c2", "read_file", True),
        ("c3", "write_file", True),
        ("c4", "read_file", True),
    ]
    reasons = [text.partition(":")[0] for text in texts(results)]
    assert reasons == ["INVALID_PATH", "NOT_FOUND", "UNKNOWN_TOOL", "INVALID_ARGUMENTS"]
    assert not any(str(tmp_path) in text for text in texts(results))


@pytest.mark.parametrize("place", ["arguments", "input", "args"])
async def test_Generate__arguments_are_read_in_every_provider_shape(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, place: str
) -> None:
    answer = calling(("c1", "write_file", '{"path": "a.txt", "content": "x"}'))
    call = answer.content[-1].tool_call
    call.block_json = call.block_json.replace('"arguments"', f'"{place}"')
    mesh.answers.extend([answer, saying("Done.")])
    mesh.queue_run(tools=("write_file",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [result] = mesh.messages(RESULT)
    assert (result.is_error, json.loads(texts([result])[0])["path"]) == (False, "a.txt")


async def test_SpawnSession__has_workspace_files_and_the_tool_calls_span(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spawn = {
        "task": "Read it.",
        "label": "reader",
        "thinking": "low",
        "attachments": [{"path": "out/a.txt"}, {"name": "b.txt", "content": "b"}],
    }
    mesh.answers.extend(
        [
            calling(("c1", "write_file", '{"path": "out/a.txt", "content": "ä"}')),
            calling(("c1", "sessions_spawn", json.dumps(spawn)), ("c1", "sessions_spawn", json.dumps(spawn))),
            saying("Spawned."),
        ]
    )
    mesh.queue_run(tools=("write_file", "sessions_spawn"))
    async with running_runner(mesh, keys, tmp_path, tracer=provider.get_tracer("test")):
        await eventually(lambda: mesh.finalized)
    # The provider used one id for all its calls, but they are different calls.
    assert len(mesh.spawns) == 2
    request = next(iter(mesh.spawns.values()))
    assert (request.task, request.label) == ("Read it.", "reader")
    assert request.thinking == thinking_pb2.THINKING_LEVEL_LOW
    assert [(item.name, item.data, item.content, item.encoding) for item in request.attachments] == [
        ("a.txt", b"\xc3\xa4", "", attachment_pb2.ENCODING_UNSPECIFIED),
        ("b.txt", b"", "b", attachment_pb2.ENCODING_UTF8),
    ]
    assert json.loads(texts(mesh.messages(RESULT))[1])["session_id"].startswith("ses_")

    spans = {span.name: span for span in exporter.get_finished_spans()}
    agent, tool, rpc = (
        spans[name]
        for name in (
            "invoke_agent default",
            "execute_tool sessions_spawn",
            "spawnmesh.session.v1.SessionService/SpawnSession",
        )
    )
    assert agent.parent is not None
    assert (f"{agent.parent.trace_id:032x}", f"{agent.parent.span_id:016x}") == (TRACE_ID, SPAWN_SPAN_ID)
    assert tool.parent is not None
    assert tool.parent.span_id == agent.context.span_id
    assert rpc.parent is not None
    assert rpc.parent.span_id == tool.context.span_id
    assert all(trace.split("-")[1] == TRACE_ID for trace in mesh.spawn_traces)
    assert agent.attributes is not None
    assert agent.attributes["gen_ai.conversation.id"] == mesh.session_id
    assert agent.attributes["gen_ai.usage.input_tokens"] == 30
    assert agent.attributes["gen_ai.request.model"] == "scripted/one"
    assert tool.status.is_unset


async def test_SpawnSession__the_model_reads_a_refusal(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = deque(
        [
            unavailable("transcript", retry_after_seconds=0.01),
            MeshError(Reason.SPAWN_DEPTH_EXCEEDED, "too deep"),
        ]
    )
    mesh.answers.extend([calling(("c1", "sessions_spawn", '{"task": "t"}')), saying("No.")])
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [result] = mesh.messages(RESULT)
    assert (result.is_error, texts([result])) == (True, ["SPAWN_DEPTH_EXCEEDED: too deep"])
    assert len(mesh.spawns) == 1


@pytest.mark.parametrize(
    ("index", "named"),
    [
        ("0", '"b.txt"'),
        ("1", '"made/c.txt"'),
        ("2", f'"a.txt" of {SET_ID}'),
        ("3", ""),
    ],
)
async def test_SpawnSession__a_refusal_of_one_file_names_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, index: str, named: str
) -> None:
    """The files that the request holds are counted before those of sets."""
    refused = MeshError(Reason.STORED_HASH_DIFFERS, "the bytes are lost", facts={"index": index})
    mesh.refusals["SpawnSession"] = deque([refused])
    attachments = [
        {"set_id": SET_ID, "name": "a.txt", "new_name": "d.txt"},
        {"name": "b.txt", "content": "b"},
        {"path": "made/c.txt"},
    ]
    write = ("c1", "write_file", '{"path": "made/c.txt", "content": "c"}')
    spawn = json.dumps({"task": "Check.", "attachments": attachments})
    mesh.answers.extend([calling(write, ("c2", "sessions_spawn", spawn)), saying("Done.")])
    mesh.queue_run(tools=("sessions_spawn", "write_file"))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    [*_, text] = texts(mesh.messages(RESULT))
    assert text == ": ".join(filter(None, ("STORED_HASH_DIFFERS", named, "the bytes are lost")))


async def test_WaitSession__returns_states_and_says_how_results_arrive(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    child = "ses_" + "0" * 26
    mesh.answers.extend(
        [
            calling(("c1", "sessions_wait", json.dumps({"session_ids": [child], "timeout_seconds": 5}))),
            saying("Waited."),
        ]
    )
    mesh.queue_run(tools=("sessions_wait",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized)
    waited = json.loads(texts(mesh.messages(RESULT))[0])
    assert waited["all_done"] is True
    assert waited["sessions"] == [
        {"session_id": child, "done": True, "state": "CLOSED", "run_state": "SUCCEEDED"}
    ]
    assert "message" in waited["note"]


async def test_ReadFile__a_broken_download_is_retried(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    mesh.files = {"a.bin": data, "b.bin": data[::-1]}
    mesh.refusals["ReadFile"] = deque([unavailable("storage", retry_after_seconds=0.01)])
    path = f".spawnmesh/attachments/{mesh.set_id}"
    mesh.answers.extend([calling(("c1", "list_files", json.dumps({"path": path}))), saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    [result] = mesh.messages(RESULT)
    entries = map(json.loads, result.content[1].text.text.split("\n"))
    listed = {entry["name"]: entry["sha256"] for entry in entries}
    assert listed["a.bin"] == hashlib.sha256(data).hexdigest()
    assert listed["b.bin"] == hashlib.sha256(data[::-1]).hexdigest()


async def test_ClaimRuns__after_a_takeover_the_broken_model_is_reported(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The broken model need not be the run's first: it may have been a fallback."""
    began = calling(("c1", "list_files", "{}"))
    began.model = "other/stand-in"
    mesh.write(began, epoch=1)
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=2, tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    assert [attempt.model for attempt in mesh.prompts[0].earlier_attempts] == ["other/stand-in"]
