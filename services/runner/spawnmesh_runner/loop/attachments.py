"""Download the session's files from the blob service into the workspace."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import IO

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import FileSource, MaterializeError, materialize
from spawnmesh_materialize.errors import os_errors_typed

from spawnmesh_runner.clients.retry import call_with_retry, retry_transient
from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.failure import is_disk_full
from spawnmesh_runner.loop.assignment import Assignment

_FILE_SECONDS = 60.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_READ_BYTES = 256 * 1024
_READABLE = (attachment_pb2.SET_STATE_STAGED, attachment_pb2.SET_STATE_ATTACHED)


async def fetch_attachments(assignment: Assignment) -> None:
    """Write the session's complete attachment set into the workspace, with every hash checked.

    A session without files needs no call. Raises MeshError:

    - ATTACHMENT_SET_STATE if the files were released.
    - ATTACHMENTS_MATERIALIZATION_FAILED if they differ from the receipt, are too large for a
      workspace, or cannot be written.
    - the error of the blob service.

    Raises MaterializeError if the disk has no room for them.
    """
    if not assignment.claimed.session.HasField("receipt"):
        return
    peers = assignment.peers
    receipt = assignment.claimed.session.receipt
    set_id = receipt.set_id
    found = await call_with_retry(
        peers.attachment_blob, peers.attachments.GetSet, pb.GetSetRequest(set_id=set_id)
    )
    _require_promised(found.set, receipt)
    _require_room(found.set, assignment.max_workspace_bytes)
    try:
        # The bytes pass through one unnamed file: writing the set is blocking work and must not
        # wait for the network while it holds a thread. On a full disk, closing the file fails too.
        with os_errors_typed(), tempfile.TemporaryFile(dir=assignment.workspace) as passing:
            sources = await _download(assignment, found.set, passing)
            await finish_in_thread(lambda: materialize(assignment.workspace, set_id, sources))
    except MaterializeError as error:
        if is_disk_full(error):
            raise
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the attachments could not be written into the workspace: {error}",
        ) from error


def _require_promised(found: attachment_pb2.AttachmentSet, receipt: session_pb2.AttachmentReceipt) -> None:
    """Raise unless the set is readable and has the files that the session was spawned with.

    A run without them would answer without them.
    """
    set_id = receipt.set_id
    if found.state not in _READABLE:
        state = attachment_pb2.SetState.Name(found.state).removeprefix("SET_STATE_")
        raise MeshError(
            Reason.ATTACHMENT_SET_STATE,
            f"the session's files can no longer be read: attachment set {set_id} is {state};"
            " spawn a new session with them, and lengthen the tenant's retention"
            " if sessions stay open longer",
            facts={"set_id": set_id, "state": state},
        )
    if _manifest(found.files) != _manifest(receipt.files):
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the files of attachment set {set_id} are not those of the session's receipt;"
            " spawn a new session with them, and check if only one of the two services was restored",
            facts={"set_id": set_id},
        )


def _require_room(found: attachment_pb2.AttachmentSet, max_workspace_bytes: int) -> None:
    """Raise unless the workspace has room for the files and for the copy that they pass through."""
    total_bytes = sum(file.size_bytes for file in found.files)
    if 2 * total_bytes > max_workspace_bytes:
        raise MeshError(
            Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
            f"the session's files have {total_bytes} bytes, and a workspace has room for"
            f" {max_workspace_bytes // 2}; attach less, or raise RUNNER_MAX_WORKSPACE_BYTES",
            facts={"total_bytes": total_bytes, "limit_bytes": max_workspace_bytes // 2},
        )


def _manifest(files: Iterable[attachment_pb2.AttachmentFile]) -> list[tuple[str, int, str]]:
    return sorted((file.name, file.size_bytes, file.sha256) for file in files)


async def _download(
    assignment: Assignment, files: attachment_pb2.AttachmentSet, passing: IO[bytes]
) -> list[FileSource]:
    """Download the set's files one after another into `passing`.

    Return where each of them begins.
    """
    sources = []
    start = 0
    for file in files.files:
        received = _Received(start)
        await retry_transient(partial(_download_one, assignment, files.set_id, file, passing, received))
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
    assignment: Assignment,
    set_id: str,
    file: attachment_pb2.AttachmentFile,
    passing: IO[bytes],
    received: _Received,
) -> None:
    """Write the missing part of one file. A repeat continues where a broken stream ended.

    Bytes beyond the manifest's size are not written. The service verifies only complete reads; the
    code that writes the set checks sizes and hashes in any case.
    """
    peers = assignment.peers
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
