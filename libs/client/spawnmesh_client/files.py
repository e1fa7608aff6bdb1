"""Files of a tenant: uploads, and the sets of sessions: attachments, and published files."""

from collections.abc import AsyncIterator
from pathlib import Path

from spawnmesh_core.errors import not_found

from spawnmesh_client.attachment_sets import (
    download_file,
    download_url,
    get_readable_set,
    get_set,
    list_sets,
)
from spawnmesh_client.attachment_uploads import OnProgress, no_progress, upload_file
from spawnmesh_client.attachments import Attachable, sendable
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import view_of
from spawnmesh_client.views import AttachmentSet, DownloadUrl, StoredUpload
from spawnmesh_client.wire import WireMesh


class Files:
    """`mesh.files`."""

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def upload(self, file: Attachable, *, on_progress: OnProgress = no_progress) -> StoredUpload:
        """Upload a file to the tenant's store, where a later spawn finds it and sends nothing.

        It resumes after broken streams, also when another program repeats it.
        """
        async with sendable([file]) as (one,):
            return view_of(StoredUpload, await upload_file(self._peer, one, on_progress))

    async def sets(self, *, session_id: str = "") -> AsyncIterator[AttachmentSet]:
        """Yield the tenant's sets, or those of one session, newest first.

        They are the attachments of spawns, and the files that runs stored to publish them, which
        have a `run_id`.
        """
        async for one in list_sets(self._peer, session_id=session_id):
            yield view_of(AttachmentSet, one)

    async def get(self, set_id: str) -> AttachmentSet:
        """Return an attachment set or an output set with its files."""
        return view_of(AttachmentSet, await get_set(self._peer, set_id))

    async def download(
        self,
        set_id: str,
        name: str,
        directory: str | Path = ".",
        *,
        overwrite: bool = False,
        on_progress: OnProgress = no_progress,
    ) -> Path:
        """Download a file of a set into the directory, under its own name, and return its path.

        The file appears complete and with the recorded hash, or not at all. Raises NotFound,
        FailedPrecondition ATTACHMENT_SET_STATE for a set that was released, FileExistsError unless
        it may overwrite, and other OSErrors.
        """
        found = await get_readable_set(self._peer, set_id)
        for file in found.files:
            if file.name == name:
                return await download_file(
                    self._peer, set_id, file, Path(directory), overwrite=overwrite, on_progress=on_progress
                )
        raise not_found("file", name)

    async def url(self, set_id: str, name: str) -> DownloadUrl:
        """Return a URL from which anybody can download one file for a short time.

        Raises FailedPrecondition DOWNLOAD_URLS_DISABLED unless the tenant has them.
        """
        return view_of(DownloadUrl, await download_url(self._peer, set_id, name))

    @property
    def _peer(self) -> TokenPeer:
        return self._wire.service("attachment-blob")
