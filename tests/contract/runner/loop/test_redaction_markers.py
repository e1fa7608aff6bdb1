"""If a model copies a redaction marker, it reads a refusal.

Its run continues, and no marker is handed over as a file.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.transcript.bodies import text_of, user
from tests.support.transcript.fixtures import Service, Session
from tests.support.waiting import eventually

USER, ASSISTANT, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
MARKER = {"$redacted": "attachment", "sha256": hashlib.sha256(b"abc").hexdigest(), "bytes": 3}
WRITTEN = json.dumps(MARKER)
ENCODED = base64.b64encode(WRITTEN.encode()).decode()
TOOLS = ("sessions_spawn", "list_files", "write_file")


@pytest.fixture
async def real(mesh: ScriptedMesh, service: Service) -> Session:
    """Return the same session in the transcript service, which redacts and refuses."""
    session = Session(service, TENANT, mesh.session_id)
    await session.create()
    await session.append([user("Do it.")])
    return session


def spawning(call_id: str, attachments: object) -> tuple[str, str, str]:
    return call_id, "sessions_spawn", json.dumps({"task": "Read it.", "attachments": attachments})


async def execute_run(mesh: ScriptedMesh, keys: Path, folder: Path, service: Service) -> None:
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, folder, transcript_target=service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None


async def messages(session: Session, role: message_pb2.Role.ValueType) -> list[entry_pb2.Entry]:
    return [entry for entry in await session.entries() if entry.body.message.role == role]


async def arguments(session: Session) -> list[Any]:
    """Return the stored arguments of the first answer's calls."""
    answer = (await messages(session, ASSISTANT))[0].body.message
    blocks = [block.tool_call.block_json for block in answer.content if block.HasField("tool_call")]
    return [json.loads(block)["arguments"] for block in blocks]


@pytest.mark.parametrize(
    ("attachments", "stored"),
    [
        ([{"name": "a.txt", "content": MARKER}], [{"name": "a.txt", "content": None}]),
        ([{"name": "a.txt", "content": WRITTEN}], [{"name": "a.txt", "content": None}]),
        (
            [{"name": "a.txt", "content": ENCODED, "encoding": "base64"}],
            [{"name": "a.txt", "content": None, "encoding": "base64"}],
        ),
        ([{"path": "b.txt"}, MARKER], [{"path": "b.txt"}, None]),
        (MARKER, None),
    ],
    ids=["object", "text", "base64", "whole file", "all files"],
)
async def test_AppendEntries__a_call_with_a_marker_is_stored_without_it_and_refused(
    mesh: ScriptedMesh,
    keys: Path,
    tmp_path: Path,
    service: Service,
    real: Session,
    attachments: object,
    stored: object,
) -> None:
    mesh.answers.extend([calling(spawning("c1", attachments)), saying("Done.")])
    await execute_run(mesh, keys, tmp_path, service)
    assert await arguments(real) == [{"task": "Read it.", "attachments": stored}]
    [result] = await messages(real, RESULT)
    assert result.body.message.tool_call_id == "c1"
    assert text_of(result).startswith("INVALID_ARGUMENTS: ")
    assert "hand the file over again" in text_of(result)
    assert mesh.spawns == {}
    assert [message.role for message in mesh.prompts[1].messages] == [USER, ASSISTANT, RESULT]


async def test_AppendEntries__the_other_calls_of_an_answer_with_a_marker_are_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    note = {"path": "note.json", "content": WRITTEN}
    files = [{"name": "b.txt", "content": "bytes"}]
    calls = [("c1", "write_file", json.dumps(note)), spawning("c2", [{"name": "a", "content": MARKER}])]
    mesh.answers.extend([calling(*calls, spawning("c3", files)), saying("Done.")])
    await execute_run(mesh, keys, tmp_path, service)
    results = [entry.body.message for entry in await messages(real, RESULT)]
    assert [(result.tool_call_id, result.is_error) for result in results] == [
        ("c1", False),
        ("c2", True),
        ("c3", False),
    ]
    assert (await arguments(real))[0] == note
    [request] = mesh.spawns.values()
    assert [(file.name, file.content) for file in request.attachments] == [("b.txt", "bytes")]


async def test_AppendEntries__a_batch_with_a_marker_is_refused_by_every_tool(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    """A tool that needs no arguments would otherwise be called without those that the model
    gave.
    """
    inner = {"name": "sessions_spawn", "arguments": {"task": "t", "attachments": [{"content": MARKER}]}}
    mesh.answers.extend([calling(("c1", "list_files", json.dumps({"calls": [inner]}))), saying("Done.")])
    await execute_run(mesh, keys, tmp_path, service)
    [result] = await messages(real, RESULT)
    assert text_of(result).startswith("INVALID_ARGUMENTS: ")


async def test_SpawnSession__after_a_takeover_a_call_without_its_marker_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(calling(spawning("c1", [{"name": "a.txt", "content": None}]), spawning("c2", None)))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=2, tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    texts = [message.content[0].text.text for message in mesh.messages(RESULT)]
    assert [text.partition(":")[0] for text in texts] == ["INVALID_ARGUMENTS", "INVALID_ARGUMENTS"]
    assert mesh.spawns == {}
    assert mesh.finalized is not None
