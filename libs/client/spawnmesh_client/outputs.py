"""Files that runs have published: list them, attach them to other sessions, and download them."""

import asyncio
import hashlib
import unicodedata
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1 import output_pb2 as rpc
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason

from spawnmesh_client.attachment_sets import download_file, require_file_name
from spawnmesh_client.attachment_uploads import OnProgress, no_progress
from spawnmesh_client.attachments import ReferencedFile
from spawnmesh_client.pages import pages_of
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.views import AttachedFile
from spawnmesh_client.wire import WireMesh

_PAGE = 100


@dataclass(frozen=True, slots=True)
class OutputSet:
    """Files that a run published in one call."""

    set_id: str
    session_id: str
    run_id: str
    request_id: str
    files: tuple[AttachedFile, ...]
    total_bytes: int
    publish_time: datetime | None

    def references(self, *names: str) -> list[ReferencedFile]:
        """Return the files, or those with these names, as attachments for a spawn.

        Raises NotFound for a name that the set does not have.
        """
        own = [file.name for file in self.files]
        for name in names:
            if name not in own:
                raise not_found("file", name)
        return [ReferencedFile(self.set_id, name) for name in names or own]


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A published file, and its place below the directory in which it is saved."""

    output_set: rpc.OutputSet
    file: AttachmentFile
    place: Path


async def list_outputs(
    peer: TokenPeer, session_id: str, *, run_id: str = "", page_size: int = _PAGE
) -> AsyncIterator[rpc.OutputSet]:
    """Yield the output sets of the session, or those of one run, in the order in which they were
    published.

    Pages are fetched as needed. Raises NOT_FOUND for an unknown session.
    """
    request = rpc.ListOutputSetsRequest(session_id=session_id, run_id=run_id, page_size=page_size)
    stub = SessionServiceStub(peer.channel)
    async for page in pages_of(peer, stub.ListOutputSets, request):
        for one in page.output_sets:
            yield one


def placed(sets: Sequence[rpc.OutputSet]) -> list[PlacedFile]:
    """Return the files of the sets, which are in the order of publication, and their places.

    - The newest file of a name has this name.
    - An earlier file of the same name has this name in a directory that is named as its set.
    - A file whose name begins as the id of a set does is in the directory of its own set, too. So a
      file never has the name of a directory, also not of one that a later set needs.
    - Names that some systems take for one, such as `A.md` and `a.md`, count as the same name. Those
      of one set, which the service refuses, are in directories such as `att_….2`.
    - Files with the same name and the same bytes are one file, that of the newest set.
    """
    taken: set[str] = set()
    known: set[tuple[str, str]] = set()
    found: list[PlacedFile] = []
    for one in reversed(sets):
        for file in reversed(one.files):
            if (file.name, file.sha256) in known:
                continue
            place = next(at for at in _places(one.set_id, file.name) if _folded(str(at)) not in taken)
            found.append(PlacedFile(one, file, place))
            taken.add(_folded(str(place)))
            known.add((file.name, file.sha256))
    return found[::-1]


async def save_outputs(
    wire: WireMesh,
    session_id: str,
    directory: Path,
    *,
    run_id: str = "",
    overwrite: bool = False,
    on_progress: OnProgress = no_progress,
) -> list[PlacedFile]:
    """Download the published files of a session, or of one run, to their places in the directory,
    and return them.

    The directory is created if its parent exists. Each file appears complete and with the recorded
    hash, or not at all. A file that is there with these bytes stays as it is, so that a repeat
    downloads only what is new. Raises:

    - FileExistsError, before the first download, for a file that is there with other bytes, unless
      it may overwrite; WriteInProgress; other OSErrors.
    - MeshError NOT_FOUND for an unknown session; ATTACHMENT_SET_STATE for a set that was released,
      after the files of all other sets are saved; and what `download_file` raises.
    """
    files = placed([one async for one in list_outputs(wire.service("session"), session_id, run_id=run_id)])
    missing = []
    for one in files:
        require_file_name(one.output_set.set_id, one.file.name)
        target = directory / one.place
        if await asyncio.to_thread(_has_bytes, target, one.file.sha256):
            continue
        if not overwrite and (target.exists() or target.is_symlink()):
            raise FileExistsError(f"{one.place} is there already")
        missing.append(one)
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    released: MeshError | None = None
    for one in missing:
        folder = (directory / one.place).parent
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        try:
            await download_file(
                wire.service("attachment-blob"), one.output_set.set_id, one.file, folder,
                overwrite=overwrite, on_progress=on_progress,
            )  # fmt: skip
        except MeshError as error:
            if error.reason is not Reason.ATTACHMENT_SET_STATE:
                raise
            released = released or error
    if released is not None:
        raise released
    return files


async def fetch_files(
    peer: TokenPeer, set_id: str, files: Sequence[AttachmentFile], directory: Path
) -> list[Path]:
    """Download the files of a set into the directory, and return their paths.

    A file that is there with its bytes stays as it is, and one with other bytes is replaced. Raises
    what `download_file` raises.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    paths = []
    for file in files:
        require_file_name(file.name)
        path = directory / file.name
        if not await asyncio.to_thread(_has_bytes, path, file.sha256):
            path = await download_file(peer, set_id, file, directory, overwrite=True)
        paths.append(path)
    return paths


def _places(set_id: str, name: str) -> Iterator[Path]:
    """Yield the places that a file of a set may have, the best one first."""
    begin = _folded(name)[: len(set_id)]  # All ids are equally long.
    if not is_id(IdKind.ATTACHMENT_SET, begin):
        yield Path(name)
    yield Path(set_id, name)
    for number in count(2):
        yield Path(f"{set_id}.{number}", name)


def _folded(name: str) -> str:
    """Return a key that names have in common if some file system takes them for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _has_bytes(path: Path, sha256: str) -> bool:
    """Return True if a file, not a link, is there and its bytes have the hash."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256
