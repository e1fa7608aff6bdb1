"""The download of the session's files: a broken stream is resumed, and only the announced bytes
stay.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.session.v1 import run_service_pb2, session_pb2
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachments import fetch_attachments
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.serving import served, shared_settings

PIECE = 1000
ROOM_BYTES = 1024 * 1024
SET_ID, SESSION_ID = new_id(IdKind.ATTACHMENT_SET), new_id(IdKind.SESSION)


def content(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


class CutStreams(AttachmentBlobServiceServicer):
    """Serve files in pieces and cut the first streams, each after its number of bytes."""

    def __init__(self, files: dict[str, bytes], cuts: Sequence[int] = ()) -> None:
        self.files = files
        self.announced = dict(files)
        self.cuts = list(cuts)
        self.reads: list[tuple[str, int]] = []
        self.sent_bytes = 0

    def manifest(self) -> list[attachment_pb2.AttachmentFile]:
        return [
            attachment_pb2.AttachmentFile(
                name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
            )
            for name, data in self.announced.items()
        ]

    async def GetSet(self, request: pb.GetSetRequest, context: Any) -> pb.GetSetResponse:
        attached = attachment_pb2.AttachmentSet(
            set_id=request.set_id, state=attachment_pb2.SET_STATE_ATTACHED, files=self.manifest()
        )
        return pb.GetSetResponse(set=attached)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Any) -> AsyncIterator[pb.ReadFileResponse]:
        self.reads.append((request.name, request.offset))
        rest = self.files[request.name][request.offset :]
        cut = self.cuts.pop(0) if self.cuts else None
        for at in range(0, len(rest[:cut]), PIECE):
            piece = rest[:cut][at : at + PIECE]
            self.sent_bytes += len(piece)
            yield pb.ReadFileResponse(data=piece)
        if cut is not None:
            raise unavailable("S3", retry_after_seconds=0.001)


@asynccontextmanager
async def assigned(
    blobs: CutStreams, keys: Path, workspace: Path, room_bytes: int = ROOM_BYTES
) -> AsyncIterator[Assignment]:
    """Open a run whose session has those files, as a runner holds it."""

    @asynccontextmanager
    async def open_blobs(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_AttachmentBlobServiceServicer_to_server(blobs, server)
        yield server

    minter = TokenMinter("session", keys / "session.pem")
    run_id = new_id(IdKind.RUN)
    session = session_pb2.Session(session_id=SESSION_ID)
    session.receipt.set_id = SET_ID
    session.receipt.files.extend(blobs.manifest())
    claimed = run_service_pb2.ClaimedRun(
        run=session_pb2.Run(run_id=run_id, session_id=SESSION_ID), session=session
    )
    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with served("attachment-blob", blob_settings, open_blobs) as target:
        peers = ("session", "transcript", "model_router", "attachment_blob", "hook")
        targets: dict[str, Any] = {f"{peer}_target": target for peer in peers}
        settings = RunnerSettings(**shared_settings("runner", keys), **targets, workspace_root=workspace)
        async with start_process("runner", settings) as process, open_peers(process, settings) as mesh:
            with use_token(minter.run_token("acme", SESSION_ID, run_id, 1, 300)):
                yield Assignment(claimed, mesh, workspace, room_bytes, tools={}, generate_timeout_seconds=1)


def written(workspace: Path) -> dict[str, bytes]:
    """Return the files in the workspace, without the manifest."""
    found = (workspace / ".spawnmesh/attachments" / SET_ID).iterdir()
    return {file.name: file.read_bytes() for file in found if file.name != ".manifest.json"}


@pytest.mark.parametrize(
    ("cuts", "offsets"),
    [
        ([], [0]),
        ([0], [0, 0]),
        ([1], [0, 1]),
        ([PIECE], [0, PIECE]),
        ([PIECE + 1, 2 * PIECE - 1], [0, PIECE + 1, 3 * PIECE]),
        ([4 * PIECE + 7], [0, 4 * PIECE + 7]),
    ],
    ids=["whole", "before-a-byte", "behind-one-byte", "between-pieces", "twice", "at-the-end"],
)
async def test_a_cut_stream_is_resumed(
    keys: Path, tmp_path: Path, cuts: list[int], offsets: list[int]
) -> None:
    files = {"a.bin": content("a", 4 * PIECE + 7), "b.bin": content("b", 2 * PIECE), "empty": b""}
    blobs = CutStreams(files, cuts)
    async with assigned(blobs, keys, tmp_path) as assignment:
        await fetch_attachments(assignment)

    assert written(tmp_path) == files
    assert blobs.reads == [*(("a.bin", offset) for offset in offsets), ("b.bin", 0), ("empty", 0)]
    assert blobs.sent_bytes == sum(len(data) for data in files.values()), "no byte came twice"


@pytest.mark.parametrize("wrong", ["changed", "shorter"])
async def test_a_resumed_file_must_have_the_announced_hash(keys: Path, tmp_path: Path, wrong: str) -> None:
    announced = content("a", 3 * PIECE)
    served_now = {"changed": announced[:-1] + b"?", "shorter": announced[:-1]}[wrong]
    blobs = CutStreams({"a.bin": served_now}, [PIECE])
    blobs.announced = {"a.bin": announced}
    async with assigned(blobs, keys, tmp_path) as assignment:
        with pytest.raises(MeshError) as refusal:
            await fetch_attachments(assignment)

    assert refusal.value.reason is Reason.ATTACHMENTS_MATERIALIZATION_FAILED
    assert [offset for _, offset in blobs.reads] == [0, PIECE]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


async def test_files_of_half_the_workspace_are_fetched_and_one_byte_more_is_refused(
    keys: Path, tmp_path: Path
) -> None:
    blobs = CutStreams({"a.bin": content("a", PIECE), "b.bin": content("b", PIECE)})
    async with assigned(blobs, keys, tmp_path, room_bytes=4 * PIECE - 1) as assignment:
        with pytest.raises(MeshError) as refusal:
            await fetch_attachments(assignment)
    assert refusal.value.reason is Reason.ATTACHMENTS_MATERIALIZATION_FAILED
    assert refusal.value.facts == {"total_bytes": "2000", "limit_bytes": "1999"}
    assert "raise RUNNER_MAX_WORKSPACE_BYTES" in str(refusal.value)
    assert (blobs.reads, list(tmp_path.iterdir())) == ([], [])

    async with assigned(blobs, keys, tmp_path, room_bytes=4 * PIECE) as assignment:
        await fetch_attachments(assignment)
    assert written(tmp_path) == blobs.files
