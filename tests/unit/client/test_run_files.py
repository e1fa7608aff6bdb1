"""Files that a run publishes and fetches, against services in this process."""

import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.attachment_blob.v1.upload_pb2 import (
    UPLOAD_STATE_COMPLETE,
    UPLOAD_STATE_OPEN,
    Upload,
    UploadSpec,
)
from spawnmesh.session.v1 import output_pb2
from spawnmesh.session.v1 import run_service_pb2 as runs
from spawnmesh.session.v1.run_service_pb2_grpc import (
    RunServiceServicer,
    add_RunServiceServicer_to_server,
)
from spawnmesh_client import (
    Attachment,
    FailedPrecondition,
    InvalidRequest,
    MeshError,
    NotFound,
    Reason,
    connect,
)
from spawnmesh_client.run_context import RunContext, run_context
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.server import MeshServer
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import served
from tests.support.command.outputs import FakeBlobs

EPOCH = 3
MIB = 1024 * 1024
LARGE = bytes(range(256)) * 8192


@dataclass
class FakePublications(RunServiceServicer):
    """Keep the requests. Each refusal answers one of them."""

    requests: list[output_pb2.PublishFilesRequest] = field(default_factory=list)
    refusals: list[MeshError] = field(default_factory=list)

    async def PublishFiles(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if self.refusals:
            raise self.refusals.pop(0)
        files = [AttachmentFile(name=one.name, size_bytes=len(one.data)) for one in request.files]
        output = output_pb2.OutputSet(
            set_id=new_id(IdKind.ATTACHMENT_SET), request_id=request.request_id, files=files
        )
        return output_pb2.PublishFilesResponse(output_set=output)


@dataclass
class FakeStore(FakeBlobs):
    """Keep uploads, too."""

    uploads: dict[str, UploadSpec] = field(default_factory=dict)

    async def UploadFile(self, requests: Any, context: Any) -> Any:
        spec, state = None, UPLOAD_STATE_OPEN
        async for request in requests:
            if request.HasField("spec"):
                spec = request.spec
            if request.HasField("finish"):
                state = UPLOAD_STATE_COMPLETE
                self.uploads[spec.upload_id] = spec
        return blob_rpc.UploadFileResponse(upload=Upload(upload_id=spec.upload_id, state=state))


@dataclass(frozen=True, slots=True)
class Stage:
    """A claimed run and the services that it calls."""

    ctx: RunContext
    publications: FakePublications
    store: FakeStore

    def request_ids(self) -> list[str]:
        return [request.request_id for request in self.publications.requests]


@pytest.fixture
async def stage(keys: Path, tmp_path: Path) -> AsyncIterator[Stage]:
    publications, store = FakePublications(), FakeStore()

    def add_runs(server: MeshServer) -> None:
        add_RunServiceServicer_to_server(publications, server)

    def add_blobs(server: MeshServer) -> None:
        add_AttachmentBlobServiceServicer_to_server(store, server)

    claimed = runs.ClaimedRun()
    claimed.run.run_id, claimed.run.epoch = new_id(IdKind.RUN), EPOCH
    claimed.session.session_id = new_id(IdKind.SESSION)
    minter = TokenMinter("session", keys / "session.pem")
    token = minter.run_token("acme", claimed.session.session_id, claimed.run.run_id, EPOCH, 300)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with (
        served("session", keys, add_runs) as session_target,
        served("attachment-blob", keys, add_blobs) as blob_target,
        connect(targets={"session": session_target, "attachment-blob": blob_target}, token=token) as mesh,
    ):
        yield Stage(run_context(claimed, mesh, workspace), publications, store)


async def test_paths_are_below_the_workspace_and_bytes_and_streams_have_names(
    stage: Stage, tmp_path: Path
) -> None:
    ctx = stage.ctx
    (ctx.workspace / "out").mkdir()
    (ctx.workspace / "out" / "report.md").write_bytes(b"# Report")
    (ctx.workspace / "newest.md").symlink_to("out/report.md")
    (tmp_path / "elsewhere.txt").write_bytes(b"else")
    output = await ctx.publish(
        "out/report.md",
        ctx.workspace / "out" / ".." / "newest.md",
        Attachment("elsewhere.txt", tmp_path / "elsewhere.txt"),
        Attachment("b.bin", b"\x00", "x/y"),
        Attachment("c.txt", BytesIO(b"c")),
        Attachment("d.md", Path("out/report.md")),
    )
    [request] = stage.publications.requests
    assert [(one.name, one.data, one.mime_type) for one in request.files] == [
        ("report.md", b"# Report", "text/markdown"),
        ("newest.md", b"# Report", "text/markdown"),
        ("elsewhere.txt", b"else", "text/plain"),
        ("b.bin", b"\x00", "x/y"),
        ("c.txt", b"c", "text/plain"),
        ("d.md", b"# Report", "text/markdown"),
    ]
    assert (request.epoch, request.request_id) == (EPOCH, output.request_id)
    assert [file.name for file in output.files] == [one.name for one in request.files]


async def test_large_file_is_uploaded_first(stage: Stage) -> None:
    (stage.ctx.workspace / "large.bin").write_bytes(LARGE)
    await stage.ctx.publish("large.bin", Attachment("small.txt", b"s"))
    [request] = stage.publications.requests
    [upload] = request.uploads
    assert [one.name for one in request.files] == ["small.txt"]
    spec = stage.store.uploads[upload.upload_id]
    assert (spec.name, spec.sha256) == ("large.bin", hashlib.sha256(LARGE).hexdigest())


async def test_same_files_have_the_same_request_id_and_other_files_have_another(stage: Stage) -> None:
    first = [Attachment("a.md", b"a"), Attachment("large.bin", LARGE)]
    others = [
        [Attachment("a.md", b"b"), Attachment("large.bin", LARGE)],
        [Attachment("b.md", b"a"), Attachment("large.bin", LARGE)],
        [Attachment("a.md", b"a", "x/y"), Attachment("large.bin", LARGE)],
        [Attachment("a.md", b"a"), Attachment("large.bin", LARGE[1:])],
        [Attachment("a.md", b"a")],
    ]
    for files in (first, first, *others):
        await stage.ctx.publish(*files)
    same, again, *different = stage.request_ids()
    assert same == again
    assert len({same, *different}) == 1 + len(others)
    assert all(len(one.encode()) <= 128 for one in (same, *different))


async def test_given_request_id_is_sent(stage: Stage) -> None:
    await stage.ctx.publish(Attachment("a.md", b"a"), request_id="report")
    assert stage.request_ids() == ["report"]


async def test_call_is_repeated_while_the_service_is_away_and_a_refusal_names_the_file(stage: Stage) -> None:
    stage.publications.refusals = [MeshError(Reason.DRAINING, "away", retry_after_seconds=0.01)]
    await stage.ctx.publish(Attachment("a.md", b"a"))
    first, second = stage.request_ids()
    assert first == second
    stage.publications.refusals = [MeshError(Reason.ATTACHMENTS_INVALID_NAME, "no", facts={"index": 1})]
    with pytest.raises(InvalidRequest) as refused:
        await stage.ctx.publish(Attachment("a.md", b"a"), Attachment("nul", b"b"))
    assert refused.value.facts["file"] == "nul"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "ABOVE/secret.txt",
        "out/../../secret.txt",
        "link.txt",
        "folder/secret.txt",
        "chain.txt",
        "missing/../../secret.txt",
        "../missing.txt",
        "folder/missing.txt",
        "../workspace-2/secret.txt",
    ],
)
async def test_path_that_leads_out_of_the_workspace_is_refused(
    stage: Stage, tmp_path: Path, path: str
) -> None:
    workspace = stage.ctx.workspace
    (tmp_path / "workspace-2").mkdir()
    for folder in (tmp_path, tmp_path / "workspace-2"):
        (folder / "secret.txt").write_bytes(b"secret")
    (workspace / "out").mkdir()
    (workspace / "link.txt").symlink_to(tmp_path / "secret.txt")
    (workspace / "chain.txt").symlink_to("link.txt")
    (workspace / "folder").symlink_to("..")
    given = path.replace("ABOVE", str(tmp_path))
    files: list[str | Path | Attachment] = [given, Path(given), workspace / given]
    if not Path(given).is_absolute():
        files += [Attachment("a.txt", Path(given)), Attachment("a.txt", workspace / given)]
    for file in files:
        with pytest.raises(InvalidRequest) as refused:
            await stage.ctx.publish(Attachment("good.md", b"good"), file)
        assert refused.value.reason is Reason.INVALID_REQUEST
        assert "is outside of the workspace: copy the file into the workspace" in str(refused.value)
        assert refused.value.facts["file"].endswith(given)
    assert stage.publications.requests == []


async def test_link_to_itself_leads_nowhere(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (stage.ctx.workspace / "folder").symlink_to("..")
    (stage.ctx.workspace / "loop").symlink_to("loop")
    for path in ("loop", "loop/../folder/secret.txt"):
        with pytest.raises(OSError, match="symbolic links"):
            await stage.ctx.publish(path)
    assert stage.publications.requests == []


async def test_workspace_may_itself_be_behind_a_link(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("workspace")
    stage.ctx.workspace = tmp_path / "link"
    (tmp_path / "link" / "report.md").write_bytes(b"# Report")
    await stage.ctx.publish("report.md", Attachment("again.md", tmp_path / "link" / "report.md"))
    [request] = stage.publications.requests
    assert [one.name for one in request.files] == ["report.md", "again.md"]


async def test_directory_and_pipe_are_refused(stage: Stage) -> None:
    workspace = stage.ctx.workspace
    (workspace / "out").mkdir()
    os.mkfifo(workspace / "pipe")
    for path in ("out", "out/", ".", "", "out/..", "pipe"):
        with pytest.raises(InvalidRequest) as refused:
            await stage.ctx.publish(path)
        assert "is not a file: publish the files of a directory, or an archive" in str(refused.value)
    with pytest.raises(InvalidRequest, match=r"'a\\x00\\x1b' is not a path"):
        await stage.ctx.publish("a\0\x1b")
    assert stage.publications.requests == []


async def test_file_that_is_not_there_publishes_nothing(stage: Stage) -> None:
    with pytest.raises(FileNotFoundError):
        await stage.ctx.publish("missing.md")
    assert stage.publications.requests == []


async def test_set_is_fetched_into_the_workspace_again_and_again(stage: Stage) -> None:
    set_id = stage.store.publish(report_md=b"# Report", table_csv=b"a,b")
    folder = stage.ctx.workspace / ".spawnmesh" / "attachments" / set_id
    paths = await stage.ctx.fetch(set_id)
    assert paths == [folder / "report.md", folder / "table.csv"]
    assert [path.read_bytes() for path in paths] == [b"# Report", b"a,b"]
    stage.store.reads.clear()
    paths[1].write_bytes(b"changed")
    assert await stage.ctx.fetch(set_id) == paths
    assert paths[1].read_bytes() == b"a,b"
    assert [name for _, name in stage.store.reads] == ["table.csv"]


async def test_set_that_the_run_does_not_see_leaves_no_directory(stage: Stage) -> None:
    with pytest.raises(NotFound):
        await stage.ctx.fetch(new_id(IdKind.ATTACHMENT_SET))
    released = stage.store.publish(report_md=b"# Report")
    stage.store.released.add(released)
    with pytest.raises(FailedPrecondition):
        await stage.ctx.fetch(released)
    for set_id in ("../..", "..", ""):
        with pytest.raises(InvalidRequest):
            await stage.ctx.fetch(set_id)
    assert list(stage.ctx.workspace.iterdir()) == []
