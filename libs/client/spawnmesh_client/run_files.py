"""Files of a run: those that it publishes, and those that it fetches into its workspace."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spawnmesh.session.v1.output_pb2 import PublishFilesRequest

from spawnmesh_client.attachment_sets import get_readable_set, require_file_name
from spawnmesh_client.attachment_uploads import no_progress
from spawnmesh_client.attachments import Attachable, Attachment, sendable
from spawnmesh_client.outputs import fetch_files
from spawnmesh_client.spawn_attachments import PreparedAttachments, prepare_attachments
from spawnmesh_client.wire import WireMesh

SETS_DIRECTORY = ".spawnmesh/attachments"
"""The directory of a workspace in which each set has a directory with its id."""


@dataclass(frozen=True, slots=True)
class PreparedOutput:
    """Files that can be published: small ones are read, large ones are uploaded."""

    files: PreparedAttachments

    def request(self, epoch: int, request_id: str) -> PublishFilesRequest:
        """Return the request. Without a `request_id`, it has one that its files determine."""
        return PublishFilesRequest(
            epoch=epoch,
            request_id=request_id or self._content_id(),
            files=self.files.inline,
            uploads=self.files.uploads,
        )

    def _content_id(self) -> str:
        """Return an id of names, types and bytes in their order. That of an upload has them all."""
        lines = [
            f"{file.name}/{file.mime_type}/{hashlib.sha256(file.data).hexdigest()}"
            for file in self.files.inline
        ]
        lines += [upload.upload_id for upload in self.files.uploads]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return f"files:{digest}"


@asynccontextmanager
async def prepared_output(
    wire: WireMesh, workspace: Path, files: Sequence[Attachable]
) -> AsyncIterator[PreparedOutput]:
    """Read and upload the files, whose relative paths are below the workspace.

    Raises what `prepare_attachments` raises.
    """
    found = [_in_workspace(file, workspace) for file in files]
    async with sendable(found) as readable:
        yield PreparedOutput(
            await prepare_attachments(
                wire.services.get("attachment-blob"), readable, wire.max_message_bytes * 9 // 10, no_progress
            )
        )


async def fetch_set(wire: WireMesh, set_id: str, directory: Path) -> list[Path]:
    """Download the files of a set into the directory, and return their paths.

    Raises NOT_FOUND for a set that the caller does not see, ATTACHMENT_SET_STATE for one that was
    released, and what `fetch_files` raises.
    """
    require_file_name(set_id)
    peer = wire.service("attachment-blob")
    return await fetch_files(peer, set_id, (await get_readable_set(peer, set_id)).files, directory)


def _in_workspace(file: Attachable, workspace: Path) -> Attachable:
    if not isinstance(file, Attachment):
        return workspace / file
    return replace(file, data=workspace / file.data) if isinstance(file.data, Path) else file
