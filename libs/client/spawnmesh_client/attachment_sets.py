"""What a client can ask about attachment sets, and their files brought onto this machine."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile, AttachmentSet
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.patience import Patience
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.whole_files import written_whole

_PATIENCE_SECONDS = 60.0
_PLACE_SECONDS = 600.0  # Others read large files, too.
_LOOK_AGAIN_SECONDS = 5.0
_SLOWEST_BYTES_A_SECOND = 256 * 1024
_COLLECT_SECONDS = 3600.0


async def list_sets(peer: TokenPeer, *, session_id: str = "", page_size: int = 0) -> AsyncIterator[AttachmentSet]:
    """The tenant's sets, or those of one session, newest first; fetched page by page as they are asked for."""
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
    """The set and its files."""
    stub = AttachmentBlobServiceStub(peer.channel)
    return (await peer.unary(stub.GetSet, rpc.GetSetRequest(set_id=set_id))).set


async def download_url(peer: TokenPeer, set_id: str, name: str) -> rpc.CreateDownloadUrlResponse:
    """A URL that gives one file for a short while to whoever has it. Raises DOWNLOAD_URLS_DISABLED."""
    stub = AttachmentBlobServiceStub(peer.channel)
    return await peer.unary(stub.CreateDownloadUrl, rpc.CreateDownloadUrlRequest(set_id=set_id, name=name))


async def collect_garbage(peer: TokenPeer, tenant_id: str, *, dry_run: bool) -> rpc.GarbageCounts:
    """For operators: what there was to repair between a tenant's bucket and its rows; repaired, unless it is a dry run."""
    stub = AttachmentBlobServiceStub(peer.channel)
    request = rpc.CollectGarbageRequest(tenant_id=tenant_id, dry_run=dry_run)
    return (await peer.unary(stub.CollectGarbage, request, timeout_seconds=_COLLECT_SECONDS)).counts


async def download_file(
    peer: TokenPeer,
    set_id: str,
    file: AttachmentFile,
    directory: Path,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = no_progress,
) -> Path:
    """Where the file is: under its own name in the directory, mode 0600, whole and with its hash, or not at all.

    Outlasts cuts and restarts of the service. Raises FileExistsError unless it may overwrite, BeingWritten where another process brings the
    same file now, other OSErrors, and MeshError: STORED_HASH_DIFFERS for bytes that are not the file's, ATTACHMENTS_INVALID_NAME for a name
    that would lead out of the directory.
    """
    if Path(file.name).name != file.name or file.name in ("", ".", "..") or "\0" in file.name:
        raise MeshError(Reason.ATTACHMENTS_INVALID_NAME, "the file has a name that is no file name")
    target = directory / file.name
    with written_whole(target, overwrite=overwrite) as half:
        digest = await _fill(peer, set_id, file, half, on_progress)
        if digest != file.sha256:
            raise MeshError(
                Reason.STORED_HASH_DIFFERS, "the bytes that came are not the file's", facts={"set_id": set_id}
            )
    return target


async def _fill(peer: TokenPeer, set_id: str, file: AttachmentFile, half: BinaryIO, on_progress: OnProgress) -> str:
    stub = AttachmentBlobServiceStub(peer.channel)
    digest = hashlib.sha256()
    patience = Patience(_PATIENCE_SECONDS)
    request = rpc.ReadFileRequest(set_id=set_id, name=file.name)
    seconds = _PATIENCE_SECONDS + file.size_bytes / _SLOWEST_BYTES_A_SECOND
    wait_until = monotonic_seconds() + _PLACE_SECONDS
    while True:
        patience.calling()
        try:
            async with aclosing(peer.stream(stub.ReadFile, request, timeout_seconds=seconds)) as pieces:
                async for piece in pieces:
                    patience.heard()
                    wait_until = monotonic_seconds() + _PLACE_SECONDS
                    await asyncio.to_thread(half.write, piece.data)
                    digest.update(piece.data)
                    request.offset += len(piece.data)
                    on_progress(file.name, request.offset, file.size_bytes)
            return digest.hexdigest()
        except MeshError as error:
            if error.reason is Reason.POOL_EXHAUSTED and monotonic_seconds() < wait_until:
                await asyncio.sleep(error.retry_after_seconds or _LOOK_AGAIN_SECONDS)
            else:
                await patience.after(error)
