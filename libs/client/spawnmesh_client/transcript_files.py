"""Session files into the mesh and out of it, and what transcripts say searched."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO

from spawnmesh.transcript.v1 import archive_service_pb2 as archive_rpc
from spawnmesh.transcript.v1 import search_service_pb2 as search_rpc
from spawnmesh.transcript.v1.archive_service_pb2_grpc import ArchiveServiceStub
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.line_chain import LineChain
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer

_CHUNK_BYTES = 1024 * 1024
_PATIENCE_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 128 * 1024
_EXPORT_CALL_SECONDS = 3600.0
_SEARCH_SECONDS = 30.0


async def import_file(
    peer: TokenPeer, file: Path, session_id: str, on_progress: OnProgress = no_progress
) -> archive_rpc.ImportTranscriptResponse:
    """The session file as the transcript of that session, a fresh id; the same id and file again go on with an import that was cut off.

    Outlasts cuts and restarts of the service. Raises OSError for a file that cannot be read, and MeshError: IMPORT_MALFORMED with the lines, and
    IMPORT_CONTENT_DIFFERS where the id names an import of another file.
    """
    size = (await asyncio.to_thread(file.stat)).st_size
    patience = Patience(_PATIENCE_SECONDS)
    while True:
        patience.calling()
        try:
            so_far = await _send(peer, _spec_alone(session_id), timeout_seconds=_PATIENCE_SECONDS)
            patience.heard()
            with file.open("rb") as source:
                spec = await asyncio.to_thread(_spec_behind, session_id, source, so_far.durable_bytes)
                rest = _messages(spec, source, lambda done: on_progress(file.name, done, size))
                left = max(0, size - so_far.durable_bytes)
                return await _send(peer, rest, timeout_seconds=_PATIENCE_SECONDS + left / _SLOWEST_BYTES_A_SECOND)
        except MeshError as error:
            if not refused_with(error, Reason.IMPORT_OFFSET_DIFFERS):  # A stream that was thought dead has got further.
                await patience.after(error)


async def export_file(peer: TokenPeer, session_id: str, target: BinaryIO) -> int:
    """Writes the session's transcript as a session file; how many bytes. Goes on where the service restarts.

    What is written is whole lines, also where it ends with MeshError.
    """
    stub = ArchiveServiceStub(peer.channel)
    request = archive_rpc.ExportTranscriptRequest(session_id=session_id)
    patience = Patience(_PATIENCE_SECONDS)
    written = 0
    while True:
        waiting = bytearray()
        pieces = peer.stream(stub.ExportTranscript, request, timeout_seconds=_EXPORT_CALL_SECONDS)
        patience.calling()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    patience.heard()
                    waiting += piece.data
                    if piece.read_seq > request.after_seq:
                        await asyncio.to_thread(target.write, bytes(waiting))
                        written += len(waiting)
                        waiting.clear()
                        request.after_seq, request.incarnation = piece.read_seq, piece.incarnation
            return written
        except MeshError as error:
            await patience.after(error)


async def search_entries(
    peer: TokenPeer, request: search_rpc.SearchEntriesRequest, *, limit: int
) -> AsyncIterator[search_rpc.SearchHit]:
    """Up to `limit` hits, fetched page by page as they are asked for. Waits while a long transcript is read for its first search."""
    stub = SearchServiceStub(peer.channel)
    patience = Patience(_PATIENCE_SECONDS)
    found = 0
    while True:
        patience.calling()
        try:
            page = await peer.unary(stub.SearchEntries, request, timeout_seconds=_SEARCH_SECONDS)
        except MeshError as error:
            await patience.after(error)
            continue
        patience.heard()
        for hit in page.hits:
            yield hit
            found += 1
            if found >= limit:
                return
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def _send(
    peer: TokenPeer, messages: AsyncIterator[archive_rpc.ImportTranscriptRequest], *, timeout_seconds: float
) -> archive_rpc.ImportTranscriptResponse:
    stub: Any = ArchiveServiceStub(peer.channel)  # Its type for a stream of requests is none that a peer names.
    answer: archive_rpc.ImportTranscriptResponse = await peer.unary(
        stub.ImportTranscript, messages, timeout_seconds=timeout_seconds
    )
    return answer


async def _spec_alone(session_id: str) -> AsyncIterator[archive_rpc.ImportTranscriptRequest]:
    yield archive_rpc.ImportTranscriptRequest(spec=archive_rpc.ImportSpec(session_id=session_id))


def _spec_behind(session_id: str, source: BinaryIO, durable_bytes: int) -> archive_rpc.ImportSpec:
    """Of a stream that goes on there, with the file read as far. A file that is shorter has no such bytes; the service says so."""
    spec = archive_rpc.ImportSpec(session_id=session_id)
    if durable_bytes:
        chain, left = LineChain(), durable_bytes
        while left and (data := source.read(min(_CHUNK_BYTES, left))):
            chain.update(data)
            left -= len(data)
        spec.sent.size_bytes, spec.sent.line_chain = durable_bytes, chain.value
    return spec


async def _messages(
    spec: archive_rpc.ImportSpec, source: BinaryIO, on_progress: Callable[[int], None]
) -> AsyncIterator[archive_rpc.ImportTranscriptRequest]:
    yield archive_rpc.ImportTranscriptRequest(spec=spec)
    offset = spec.sent.size_bytes
    while data := await asyncio.to_thread(source.read, _CHUNK_BYTES):
        chunk = archive_rpc.ImportChunk(offset=offset, data=data)
        yield archive_rpc.ImportTranscriptRequest(chunk=chunk)
        offset += len(data)
        on_progress(offset)
    yield archive_rpc.ImportTranscriptRequest(finish=archive_rpc.ImportFinish())
