"""Sessions with a transcript of a test's own."""

from itertools import count
from uuid import uuid4

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2 import (
    AcquireWriterRequest,
    AppendEntriesRequest,
    ReleaseWriterRequest,
    WriterClaim,
)
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.session import Session
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.console.visitors import ConsoleTenant

_PATIENCE_SECONDS = 60.0
_EPOCHS = count(1000)  # Each writer's is higher than the one before.


def said(text: str = "", *, role: int = message_pb2.ROLE_USER, image: bytes | None = None) -> EntryBody:
    """Return a message with the text, or with a picture."""
    block = message_pb2.ContentBlock()
    if image is None:
        block.text.text = text
    else:
        block.image.mime_type, block.image.data = "image/png", image
    return EntryBody(message=message_pb2.Message(role=message_pb2.Role.ValueType(role), content=[block]))


async def ended_session(mesh: Mesh, task: str = "Say hello.", **more: str) -> Session:
    """Spawn a session that stays open, and wait for its answer."""
    session = await mesh.spawn(task, mode="SESSION", **more)  # type: ignore[arg-type]
    await session.result(120)
    return await session.refresh()


async def append(tenant: ConsoleTenant, session: Session, *entries: EntryBody) -> int:
    """Append entries as a run of the session that is over, and return the newest seq."""
    stack = tenant.console.stack
    minter = TokenMinter("session", stack.keys / "session.pem")
    claim = WriterClaim(run_id=new_id(IdKind.RUN), epoch=next(_EPOCHS))
    token = minter.run_token(tenant.tenant_id, session.session_id, claim.run_id, claim.epoch, 600)
    async with connect(targets=stack.targets, token=token) as mesh:
        peer = mesh.wire.service("transcript")
        stub = TranscriptServiceStub(peer.channel)
        await peer.unary(stub.AcquireWriter, AcquireWriterRequest(session_id=session.session_id, claim=claim))
        request = AppendEntriesRequest(
            session_id=session.session_id, claim=claim, request_id=uuid4().hex, entries=entries
        )
        answer = await peer.unary(stub.AppendEntries, request, timeout_seconds=_PATIENCE_SECONDS)
        await peer.unary(stub.ReleaseWriter, ReleaseWriterRequest(session_id=session.session_id, claim=claim))
    return answer.head.seq
