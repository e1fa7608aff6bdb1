"""Session files: import and export. Also search in transcripts."""

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
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_CHUNK_BYTES = 1024 * 1024
_RETRY_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 128 * 1024
_EXPORT_CALL_SECONDS = 3600.0
_SEARCH_SECONDS = 30.0


async def import_file(
    peer: TokenPeer, file: Path, session_id: str, on_progress: OnProgress = no_progress
) -> archive_rpc.ImportTranscriptResponse:
    """Import the session file as the transcript of a new session id.

    With the same id and file, an interrupted import continues. It resumes after broken streams and
    restarts of the service. Raises OSError for a file that cannot be read, and MeshError:
    IMPORT_MALFORMED with the lines, IMPORT_CONTENT_DIFFERS if the id belongs to an import of
    another file.
    """
    size = (await asyncio.to_thread(file.stat)).st_size
    retry = RetryPolicy(_RETRY_SECONDS)
    while True:
        retry.begin_attempt()
        try:
            so_far = await _send(peer, _spec_alone(session_id), timeout_seconds=_RETRY_SECONDS)
            retry.record_answer()
            with file.open("rb") as source:
                spec = await asyncio.to_thread(_spec_behind, session_id, source, so_far.durable_bytes)
                rest = _messages(spec, source, lambda done: on_progress(file.name, done, size))
                left = max(0, size - so_far.durable_bytes)
                return await _send(
                    peer, rest, timeout_seconds=_RETRY_SECONDS + left / _SLOWEST_BYTES_A_SECOND
                )
        except MeshError as error:
            if not refused_with(
                error, Reason.IMPORT_OFFSET_DIFFERS
            ):  # A stream that seemed dead has progressed.
                await retry.wait_before_next(error)


async def export_file(peer: TokenPeer, session_id: str, target: BinaryIO) -> int:
    """Write the session's transcript as a session file and return the number of bytes.

    It resumes after restarts of the service. Only complete lines are written, also before a
    MeshError.
    """
    stub = ArchiveServiceStub(peer.channel)
    request = archive_rpc.ExportTranscriptRequest(session_id=session_id)
    retry = RetryPolicy(_RETRY_SECONDS)
    written = 0
    while True:
        waiting = bytearray()
        pieces = peer.stream(stub.ExportTranscript, request, timeout_seconds=_EXPORT_CALL_SECONDS)
        retry.begin_attempt()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    retry.record_answer()
                    waiting += piece.data
                    if piece.read_seq > request.after_seq:
                        await asyncio.to_thread(target.write, bytes(waiting))
                        written += len(waiting)
                        waiting.clear()
                        request.after_seq, request.incarnation = piece.read_seq, piece.incarnation
            return written
        except MeshError as error:
            await retry.wait_before_next(error)


async def search_entries(
    peer: TokenPeer, request: search_rpc.SearchEntriesRequest, *, limit: int
) -> AsyncIterator[search_rpc.SearchHit]:
    """Yield up to `limit` hits. Pages are fetched as needed.

    The first search of a long transcript waits until it is indexed, as long as that advances.
    """
    stub = SearchServiceStub(peer.channel)
    retry = RetryPolicy(_RETRY_SECONDS)
    found = 0
    indexed_seq = -1
    while True:
        retry.begin_attempt()
        try:
            page = await peer.unary(stub.SearchEntries, request, timeout_seconds=_SEARCH_SECONDS)
        except MeshError as error:
            if (reached := int(error.facts.get("indexed_seq", -1))) > indexed_seq:
                indexed_seq = reached
                retry.record_answer()
            await retry.wait_before_next(error)
            continue
        retry.record_answer()
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
    stub: Any = ArchiveServiceStub(peer.channel)
    answer: archive_rpc.ImportTranscriptResponse = await peer.unary(
        stub.ImportTranscript, messages, timeout_seconds=timeout_seconds
    )
    return answer


async def _spec_alone(session_id: str) -> AsyncIterator[archive_rpc.ImportTranscriptRequest]:
    yield archive_rpc.ImportTranscriptRequest(spec=archive_rpc.ImportSpec(session_id=session_id))


def _spec_behind(session_id: str, source: BinaryIO, durable_bytes: int) -> archive_rpc.ImportSpec:
    """Return the spec of a stream that continues there, and read the file up to that offset.

    A shorter file has no such bytes, and the service refuses it.
    """
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
