"""Transcripts with large results that a context does not keep whole, and operations on them."""

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh_client.client import Mesh
from spawnmesh_client.operations import Operation
from spawnmesh_client.session import Session
from spawnmesh_client.storage import list_transcripts
from spawnmesh_console.clients.transcript_storage import start_operation
from spawnmesh_console.domain.operations import OperationKind

from tests.support.console.said import append, ended_session, said
from tests.support.console.visitors import ConsoleTenant, operator_of_the_mesh

RESULT_BYTES = 20_000
_LINE = "a line of a long file that says nothing\n"
_FRESH_MESSAGES = 90
"""More than a context keeps whole."""
_BLOCK = '{"type": "toolCall", "id": "%s", "name": "read_file", "arguments": {}}'


async def session_with_old_results(tenant: ConsoleTenant, count: int = 3) -> Session:
    """Spawn a session, and append so many large results that are no longer fresh."""
    session = await ended_session(tenant.mesh)
    results = [body for number in range(count) for body in _call_with_result(f"call{number}")]
    answers = (said(f"word {number}", role=message_pb2.ROLE_ASSISTANT) for number in range(_FRESH_MESSAGES))
    await append(tenant, session, *results, *answers)
    return session


async def set_transcripts(tenant: ConsoleTenant, **fields: bool | str) -> None:
    """Change settings of the tenant's transcripts, as an operator of the mesh."""
    settings = TenantSettings()
    for name, value in fields.items():
        setattr(settings.transcripts, name, value)
    async with operator_of_the_mesh(tenant.console) as operator:
        paths = [f"settings.transcripts.{name}" for name in fields]
        await operator.tenants.update(tenant.tenant_id, paths, settings=settings)


async def done_operation(mesh: Mesh, kind: OperationKind, session_id: str) -> Operation:
    """Start an operation, and wait for its end, also for one that fails."""
    started = await start_operation(mesh, kind, session_id)
    return await mesh.operations.wait(f"services/transcript/operations/{started.operation_id}", 120)


async def dry_run_of_tiering(mesh: Mesh, session_id: str) -> str:
    """Run a dry run on the transcript, and return the id of the operation."""
    ended = await done_operation(mesh, OperationKind.TIER_DRY_RUN, session_id)
    return ended.name.rpartition("/")[2]


async def size_of(mesh: Mesh, session_id: str) -> pb.TranscriptSize:
    """Return the storage of the transcript."""
    sizes = list_transcripts(mesh.wire.service("transcript"))
    return await anext(one async for one in sizes if one.session_id == session_id)


def _call_with_result(call_id: str) -> tuple[EntryBody, EntryBody]:
    call = message_pb2.ToolCall(tool_call_id=call_id, name="read_file", block_json=_BLOCK % call_id)
    asked = message_pb2.Message(
        role=message_pb2.ROLE_ASSISTANT, content=[message_pb2.ContentBlock(tool_call=call)]
    )
    text = f"{call_id}\n" + _LINE * (RESULT_BYTES // len(_LINE))
    answered = message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT,
        tool_call_id=call_id,
        tool_name="read_file",
        content=[message_pb2.ContentBlock(text=message_pb2.Text(text=text))],
    )
    return EntryBody(message=asked), EntryBody(message=answered)
