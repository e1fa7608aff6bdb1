"""Download an attachment set from the blob service into a workspace, with every hash checked."""

import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_materialize import FileSource, Materialized, materialize, remove
from spawnmesh_materialize.errors import os_errors_typed

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry, retry_transient
from spawnmesh_runner.clients.threads import finish_in_thread

_FILE_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_READ_BYTES = 256 * 1024
_READABLE = (attachment_pb2.SET_STATE_STAGED, attachment_pb2.SET_STATE_ATTACHED)


async def get_set(peers: Peers, set_id: str) -> attachment_pb2.AttachmentSet:
    """Return the set and its manifest. Raises MeshError."""
    request = pb.GetSetRequest(set_id=set_id)
    return (await call_with_retry(peers.attachment_blob, peers.attachments.GetSet, request)).set


def is_readable(found: attachment_pb2.AttachmentSet) -> bool:
    """Return whether the files of the set can be read: they were not released."""
    return found.state in _READABLE


def state_name(found: attachment_pb2.AttachmentSet) -> str:
    """Return the state of the set as people read it, such as RELEASED."""
    return attachment_pb2.SetState.Name(found.state).removeprefix("SET_STATE_")


def needed_bytes(found: attachment_pb2.AttachmentSet) -> int:
    """Return the bytes that `download_set` writes: the files, and a copy that they pass through."""
    return 2 * sum(file.size_bytes for file in found.files)


async def download_set(peers: Peers, found: attachment_pb2.AttachmentSet, workspace: Path) -> Materialized:
    """Write the files of the set into the workspace, and replace an earlier copy of the set there.

    The set is there completely or not at all, and its earlier copy stays until the files have come.
    Raises the MeshError of the blob service, and MaterializeError, also for files that differ from
    the manifest.
    """
    # The bytes pass through one unnamed file: writing the set is blocking work and must not
    # wait for the network while it holds a thread. On a full disk, closing the file fails too.
    with os_errors_typed(), tempfile.TemporaryFile(dir=workspace) as passing:
        sources = await _download(peers, found, passing)
        return await finish_in_thread(lambda: _replace(workspace, found.set_id, sources))


def _replace(workspace: Path, set_id: str, sources: list[FileSource]) -> Materialized:
    remove(workspace, set_id)
    return materialize(workspace, set_id, sources)


async def _download(
    peers: Peers, files: attachment_pb2.AttachmentSet, passing: IO[bytes]
) -> list[FileSource]:
    """Download the set's files one after another into `passing`.

    Return where each of them begins.
    """
    sources = []
    start = 0
    for file in files.files:
        received = _Received(start)
        await retry_transient(partial(_download_one, peers, files.set_id, file, passing, received))
        sources.append(
            FileSource(file.name, file.size_bytes, file.sha256, _piece(passing, start, received.size))
        )
        start += received.size
    return sources


@dataclass(slots=True)
class _Received:
    """Count the bytes of one file that arrived. `start` is where it begins in the passing file."""

    start: int
    size: int = 0


async def _download_one(
    peers: Peers,
    set_id: str,
    file: attachment_pb2.AttachmentFile,
    passing: IO[bytes],
    received: _Received,
) -> None:
    """Write the missing part of one file. A repeat continues where a broken stream ended.

    Bytes beyond the manifest's size are not written. The service verifies only complete reads; the
    code that writes the set checks sizes and hashes in any case.
    """
    request = pb.ReadFileRequest(set_id=set_id, name=file.name, offset=received.size)
    passing.seek(received.start + received.size)
    seconds = _FILE_SECONDS + file.size_bytes / _SLOWEST_BYTES_A_SECOND
    pieces = peers.attachment_blob.stream(peers.attachments.ReadFile, request, timeout_seconds=seconds)
    async with aclosing(pieces):
        async for piece in pieces:
            if received.size + len(piece.data) > file.size_bytes:
                break
            await finish_in_thread(partial(_write, passing, piece.data))
            received.size += len(piece.data)


def _write(passing: IO[bytes], data: bytes) -> None:
    with os_errors_typed():
        passing.write(data)
        passing.flush()


def _piece(passing: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    at = start
    while at < start + size:
        with os_errors_typed():
            passing.seek(at)
            data = passing.read(min(_READ_BYTES, start + size - at))
        if not data:
            return
        at += len(data)
        yield data
