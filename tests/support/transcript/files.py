"""Session files for import and export."""

import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh.transcript.v1.archive_service_pb2_grpc import ArchiveServiceStub
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.fixtures import Session

HEADER: dict[str, Any] = {
    "type": "session",
    "version": 3,
    "id": "s-1",
    "timestamp": "2026-01-01T00:00:00Z",
    "cwd": "/w",
}


def message(number: int, role: str = "user", content: Any = None, **more: Any) -> dict[str, Any]:
    """Return the line of this number in a file without branches."""
    said = {"role": role, "content": f"text {number}" if content is None else content, **more}
    return {
        "type": "message",
        "id": f"m{number}",
        "parentId": f"m{number - 1}" if number > 1 else None,
        "message": said,
    }


def file_of(*lines: Any) -> bytes:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()


def values(data: bytes) -> list[Any]:
    """Return the JSON values of a file, without its empty lines."""
    return [json.loads(line) for line in data.decode().splitlines() if line]


async def send(
    session: Session,
    data: bytes,
    *,
    offset: int = 0,
    chunk_bytes: int = 1000,
    finish: bool = True,
    sent: pb.SentBytes | None = None,
) -> pb.ImportTranscriptResponse:
    """Send these bytes of a file in one stream."""

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(spec=pb.ImportSpec(session_id=session.session_id, sent=sent))
        for start in range(0, len(data), chunk_bytes):
            chunk = pb.ImportChunk(offset=offset + start, data=data[start : start + chunk_bytes])
            yield pb.ImportTranscriptRequest(chunk=chunk)
        if finish:
            yield pb.ImportTranscriptRequest(finish=pb.ImportFinish())

    return await send_requests(session, requests())


def sent_bytes(data: bytes) -> pb.SentBytes:
    """Return the spec that announces these bytes, as the contract defines it."""
    chain = bytes(32)
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        chain = hashlib.sha256(chain + line).digest()
    return pb.SentBytes(size_bytes=len(data), line_chain=chain)


async def go_on(session: Session, data: bytes, *, chunk_bytes: int = 50_000) -> pb.ImportTranscriptResponse:
    """Send the rest of the file behind its stored bytes, to the end."""
    durable = (await send(session, b"", finish=False)).durable_bytes
    sent = sent_bytes(data[:durable]) if durable else None
    return await send(session, data[durable:], offset=durable, chunk_bytes=chunk_bytes, sent=sent)


async def send_requests(
    session: Session, requests: AsyncIterator[pb.ImportTranscriptRequest], *, timeout_seconds: float = 60
) -> pb.ImportTranscriptResponse:
    await session.enter_tenant()
    peer = session.service.peer
    stub: Any = ArchiveServiceStub(
        peer.channel
    )  # The stub's type for a request stream is not one that a peer accepts.
    with use_token(session.client_token()):
        answer: pb.ImportTranscriptResponse = await peer.unary(
            stub.ImportTranscript, requests, timeout_seconds=timeout_seconds
        )
    return answer


async def pieces(
    session: Session,
    *,
    after_seq: int = 0,
    incarnation: str = "",
    token: str = "",
    timeout_seconds: float = 60,
) -> AsyncIterator[pb.ExportTranscriptResponse]:
    peer = session.service.peer
    stub = ArchiveServiceStub(peer.channel)
    request = pb.ExportTranscriptRequest(
        session_id=session.session_id, after_seq=after_seq, incarnation=incarnation
    )
    with use_token(token or session.client_token()):
        answers = peer.stream(stub.ExportTranscript, request, timeout_seconds=timeout_seconds)
        async with aclosing(answers):
            async for piece in answers:
                yield piece


async def exported(session: Session, *, after_seq: int = 0) -> bytes:
    return b"".join([piece.data async for piece in pieces(session, after_seq=after_seq)])
