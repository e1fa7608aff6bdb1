"""Files of a run: those that it publishes, and those that it fetches into its workspace."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from spawnmesh.session.v1.output_pb2 import PublishFilesRequest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachment_sets import get_readable_set, require_file_name
from spawnmesh_client.attachment_uploads import no_progress
from spawnmesh_client.attachments import Attachable, Attachment, sendable
from spawnmesh_client.outputs import fetch_files
from spawnmesh_client.spawn_attachments import PreparedAttachments, prepare_attachments
from spawnmesh_client.wire import WireMesh

_OUTSIDE = (
    "is outside of the workspace: copy the file into the workspace, or publish"
    " `Attachment(name, Path(…))` with its absolute path if it is meant"
)

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

    Raises INVALID_REQUEST, before anything is read, for a path that is not that of a file of the
    workspace, unless it is an `Attachment` whose path begins elsewhere; and what
    `prepare_attachments` raises.
    """
    found = await asyncio.to_thread(lambda: [_found(file, workspace) for file in files])
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


def file_names(workspace: Path, directory: str) -> list[str]:
    """Return the names of the files in a directory of the workspace."""
    try:
        return sorted(one.name for one in (workspace / directory).iterdir() if one.is_file())
    except OSError:
        return []


def read_start(workspace: Path, path: str, byte_count: int) -> bytes | None:
    """Return so many first bytes of a file of the workspace; None if the path leads to none."""
    try:
        with _in_workspace(path, workspace).open("rb") as file:
            return file.read(byte_count)
    except (MeshError, OSError):
        return None


def _found(file: Attachable, workspace: Path) -> Attachable:
    """Return the file with its path without links; an attachment from elsewhere as it is."""
    if not isinstance(file, Attachment):
        return Attachment(Path(file).name, _in_workspace(file, workspace))
    if isinstance(file.data, Path) and (workspace / file.data).is_relative_to(workspace):
        return replace(file, data=_in_workspace(file.data, workspace))
    return file


def _in_workspace(file: str | PathLike[str], workspace: Path) -> Path:
    """Return the path without links.

    Raises INVALID_REQUEST if it is not that of a file of the workspace, and OSError if it cannot be
    followed.
    """
    root, path = os.path.realpath(workspace), workspace / file
    try:
        found = Path(os.path.realpath(path, strict=True))
    except ValueError:
        raise _refused(file, "is not a path") from None
    except OSError:
        # The error would tell which files the host has.
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise _refused(file, _OUTSIDE) from None
        raise
    if not found.is_relative_to(root):
        raise _refused(file, _OUTSIDE)
    if not found.is_file():
        raise _refused(file, "is not a file: publish the files of a directory, or an archive of them")
    return found


def _refused(file: str | PathLike[str], problem: str) -> MeshError:
    shown = ascii(os.fspath(file))
    return MeshError(Reason.INVALID_REQUEST, f"{shown} {problem}", facts={"file": shown[1:-1]})
