"""Attachment sets: list, download, and collect garbage."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.attachment_pb2 import SET_STATE_RELEASED, AttachmentFile, AttachmentSet
from spawnmesh_calls.wire_errors import error_of_status
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.atomic_files import atomic_file
from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.operations import OnOperation, ignore_progress, run_operation
from spawnmesh_client.retry_policy import RetryPolicy
from spawnmesh_client.token_peer import TokenPeer

_RETRY_SECONDS = 60.0
_READER_WAIT_SECONDS = 600.0  # Other readers download large files, too.
_POLL_SECONDS = 5.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024


async def list_sets(
    peer: TokenPeer, *, session_id: str = "", page_size: int = 0
) -> AsyncIterator[AttachmentSet]:
    """Yield the tenant's sets, or those of one session, newest first.

    Pages are fetched as needed.
    """
    stub = AttachmentBlobServiceStub(peer.channel)
    request = rpc.ListSetsRequest(session_id=session_id, page_size=page_size)
    while True:
        page = await peer.unary(stub.ListSets, request)
        for one in page.sets:
            yield one
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def get_set(peer: TokenPeer, set_id: str) -> AttachmentSet:
    """Return the set with its files."""
    stub = AttachmentBlobServiceStub(peer.channel)
    return (await peer.unary(stub.GetSet, rpc.GetSetRequest(set_id=set_id))).set


async def get_readable_set(peer: TokenPeer, set_id: str) -> AttachmentSet:
    """Return the set with its files. Raises ATTACHMENT_SET_STATE for a released set."""
    found = await get_set(peer, set_id)
    if found.state == SET_STATE_RELEASED:
        raise MeshError(
            Reason.ATTACHMENT_SET_STATE,
            f"attachment set {found.set_id} is released and its files are gone",
            facts={"set_id": found.set_id, "state": "RELEASED"},
        )
    return found


async def download_url(peer: TokenPeer, set_id: str, name: str) -> rpc.CreateDownloadUrlResponse:
    """Create a URL from which anybody can download one file for a short time.

    Raises DOWNLOAD_URLS_DISABLED.
    """
    stub = AttachmentBlobServiceStub(peer.channel)
    return await peer.unary(stub.CreateDownloadUrl, rpc.CreateDownloadUrlRequest(set_id=set_id, name=name))


async def collect_garbage(
    peer: TokenPeer, tenant_id: str, *, dry_run: bool, on_progress: OnOperation = ignore_progress
) -> rpc.GarbageCounts:
    """Repair differences between a tenant's bucket and its rows by an operation, wait for it, and
    return their counts. For operators of the mesh.

    A dry run only counts them. It goes on after restarts of the service. Raises MeshError:
    NOT_FOUND for a tenant that the service does not know, and the error of the operation.
    """
    stub = AttachmentBlobServiceStub(peer.channel)
    request = rpc.CollectGarbageRequest(tenant_id=tenant_id, dry_run=dry_run, request_id=uuid.uuid4().hex)
    operation = await run_operation(peer, stub.CollectGarbage, request, on_progress)
    if operation.HasField("error"):
        raise error_of_status(operation.error)
    collected = rpc.CollectGarbageResponse()
    operation.response.Unpack(collected)
    return collected.counts


async def download_file(
    peer: TokenPeer,
    set_id: str,
    file: AttachmentFile,
    directory: Path,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = no_progress,
) -> Path:
    """Download a file into the directory under its own name, mode 0600. Return its path.

    The file appears complete and with the recorded hash, or not at all. The download resumes after
    broken streams and restarts of the service. Raises:

    - FileExistsError unless it may overwrite; WriteInProgress; other OSErrors.
    - MeshError STORED_HASH_DIFFERS if the bytes differ from the recorded hash.
    - MeshError ATTACHMENTS_INVALID_NAME if the name would lead out of the directory.
    """
    require_file_name(file.name)
    target = directory / file.name
    with atomic_file(target, overwrite=overwrite) as half:
        digest = await _fill(peer, set_id, file, half, on_progress)
        if digest != file.sha256:
            raise MeshError(
                Reason.STORED_HASH_DIFFERS, "the bytes that came are not the file's", facts={"set_id": set_id}
            )
    return target


def require_file_name(*names: str) -> None:
    """Raise ATTACHMENTS_INVALID_NAME for a name that would lead out of its directory."""
    for name in names:
        if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
            raise MeshError(Reason.ATTACHMENTS_INVALID_NAME, "the file has a name that is no file name")


async def _fill(
    peer: TokenPeer, set_id: str, file: AttachmentFile, half: BinaryIO, on_progress: OnProgress
) -> str:
    stub = AttachmentBlobServiceStub(peer.channel)
    digest = hashlib.sha256()
    retry = RetryPolicy(_RETRY_SECONDS)
    request = rpc.ReadFileRequest(set_id=set_id, name=file.name)
    seconds = _RETRY_SECONDS + file.size_bytes / _SLOWEST_BYTES_A_SECOND
    wait_until = monotonic_seconds() + _READER_WAIT_SECONDS
    while True:
        retry.begin_attempt()
        try:
            async with aclosing(peer.stream(stub.ReadFile, request, timeout_seconds=seconds)) as pieces:
                async for piece in pieces:
                    retry.record_answer()
                    wait_until = monotonic_seconds() + _READER_WAIT_SECONDS
                    await asyncio.to_thread(half.write, piece.data)
                    digest.update(piece.data)
                    request.offset += len(piece.data)
                    on_progress(file.name, request.offset, file.size_bytes)
            return digest.hexdigest()
        except MeshError as error:
            if (
                error.reason in (Reason.POOL_EXHAUSTED, Reason.RATE_LIMITED)
                and monotonic_seconds() < wait_until
            ):
                await asyncio.sleep(error.retry_after_seconds or _POLL_SECONDS)
            else:
                await retry.wait_before_next(error)
