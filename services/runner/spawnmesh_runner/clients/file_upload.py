"""Upload an open file of a workspace to the blob service, in the name of the run."""

from functools import partial
from pathlib import Path
from typing import BinaryIO

from spawnmesh.attachment_blob.v1.upload_pb2 import UploadedAttachment
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_materialize.errors import os_errors_typed
from spawnmesh_runtime.impersonation import outgoing_token

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import retry_transient


async def upload(
    peers: Peers, name: str, file: BinaryIO, *, give_up_after_seconds: float
) -> UploadedAttachment:
    """Upload the file under the name, and return what a request names.

    A broken stream is resumed, and a repeat sends only what is missing. Raises MeshError, which is
    UPLOAD_HASH_DIFFERS if the file was changed meanwhile, and MaterializeError.
    """
    blobs = peers.attachment_blob
    peer = TokenPeer(blobs.connection, partial(outgoing_token, blobs.process.minter))
    # The upload opens the file several times. By its descriptor that is the same file each time,
    # whatever its name leads to by then.
    source = Attachment(name, Path(f"/proc/self/fd/{file.fileno()}"))
    with os_errors_typed():
        uploaded = await retry_transient(
            lambda: upload_file(peer, source), give_up_after_seconds=give_up_after_seconds
        )
    return UploadedAttachment(upload_id=uploaded.upload_id)
