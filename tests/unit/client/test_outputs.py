"""Files that runs have published, against services in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import (
    Attachment,
    DataLoss,
    EventKind,
    FailedPrecondition,
    InvalidRequest,
    Mesh,
    MeshError,
    NotFound,
    OutputSet,
    Reason,
    ReferencedFile,
    Session,
    connect,
)
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, FakeMesh, event, mesh, session_in, unset
from tests.support.command.outputs import TIME_SECONDS, FakeBlobs, blobs

__all__ = ["blobs", "mesh", "unset"]

OTHER_RUN = new_id(IdKind.RUN)


@asynccontextmanager
async def connected(mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=mesh.targets, token=token) as client:
        yield client


@pytest.fixture
async def session(mesh: FakeMesh, blobs: FakeBlobs, keys: Path) -> AsyncIterator[Session]:
    async with connected(mesh, keys) as client:
        yield await client.session(SESSION_ID)


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def published(session: Session, run_id: str = "") -> list[OutputSet]:
    return [one async for one in session.outputs(run_id=run_id)]


async def test_sets_come_from_every_page_in_order(session: Session, blobs: FakeBlobs) -> None:
    first = blobs.publish(report_md=b"# Draft", table_csv=b"a,b")
    second = blobs.publish(run_id=OTHER_RUN, report_md=b"# Report")
    found = await published(session)
    assert [one.set_id for one in found] == [first, second]
    assert [(file.name, file.size_bytes, file.mime_type) for file in found[0].files] == [
        ("report.md", 7, "text/plain"),
        ("table.csv", 3, "text/plain"),
    ]
    assert (found[0].session_id, found[0].run_id, found[0].total_bytes) == (SESSION_ID, RUN_ID, 10)
    assert found[0].publish_time == datetime.fromtimestamp(TIME_SECONDS, UTC)
    assert [one.set_id for one in await published(session, OTHER_RUN)] == [second]


async def test_runs_events_and_sets_name_what_was_published(
    mesh: FakeMesh, blobs: FakeBlobs, session: Session, keys: Path
) -> None:
    set_id = blobs.publish(report_md=b"# Report")
    mesh.sessions.events = [
        session_pb2.SessionEvent(
            number=1, kind=session_pb2.SESSION_EVENT_KIND_FILES_PUBLISHED, run_id=RUN_ID, set_id=set_id
        ),
        event(2, session_pb2.SESSION_EVENT_KIND_CLOSED),
    ]
    mesh.sessions.outcome = session_in(
        session_pb2.RUN_STATE_SUCCEEDED, "done", output_file_count=1, output_total_bytes=8
    )
    events = [one async for one in session.events()]
    assert [(one.kind, one.set_id) for one in events] == [
        (EventKind.FILES_PUBLISHED, set_id),
        (EventKind.CLOSED, ""),
    ]
    run = (await session.result()).run
    assert (run.output_file_count, run.output_total_bytes) == (1, 8)
    async with connected(mesh, keys) as client:
        assert (await client.files.get(set_id)).run_id == RUN_ID


async def test_newest_file_has_the_name_and_an_earlier_one_is_below(
    session: Session, blobs: FakeBlobs, tmp_path: Path
) -> None:
    first = blobs.publish(report_md=b"# Draft", table_csv=b"a,b")
    second = blobs.publish(report_md=b"# Better", same_txt=b"same")
    blobs.publish(report_md=b"# Report", same_txt=b"same", REPORT_MD=b"# Shouted")
    paths = await session.save_outputs(tmp_path / "out")
    assert below(tmp_path / "out") == {
        f"{first}/report.md": b"# Draft",
        "table.csv": b"a,b",
        f"{second}/report.md": b"# Better",
        f"{blobs.sets[2].set_id}/report.md": b"# Report",
        "same.txt": b"same",
        "REPORT.MD": b"# Shouted",
    }
    assert len(paths) == len(set(paths)) == 6
    assert all(path.is_file() for path in paths)
    assert len(blobs.reads) == 6, "bytes that are the same are downloaded once"


async def test_file_that_is_named_as_a_set_does_not_stop_the_others(
    session: Session, blobs: FakeBlobs, tmp_path: Path
) -> None:
    first = blobs.publish(report_md=b"# Draft")
    second = blobs.publish_named({first: b"file"})
    blobs.publish(report_md=b"# Report")
    await session.save_outputs(tmp_path / "out")
    assert below(tmp_path / "out") == {
        f"{first}/report.md": b"# Draft",
        f"{second}/{first}": b"file",
        "report.md": b"# Report",
    }


async def test_only_the_files_of_one_run_are_saved(
    session: Session, blobs: FakeBlobs, tmp_path: Path
) -> None:
    blobs.publish(report_md=b"# Draft")
    blobs.publish(run_id=OTHER_RUN, other_md=b"# Other")
    assert await session.save_outputs(str(tmp_path), run_id=OTHER_RUN) == [tmp_path / "other.md"]
    assert await session.save_outputs(tmp_path, run_id=new_id(IdKind.RUN)) == []


async def test_repeat_downloads_only_what_is_new(session: Session, blobs: FakeBlobs, tmp_path: Path) -> None:
    blobs.publish(report_md=b"# Report")
    await session.save_outputs(tmp_path)
    blobs.publish(table_csv=b"a,b")
    blobs.reads.clear()
    assert await session.save_outputs(tmp_path) == [tmp_path / "report.md", tmp_path / "table.csv"]
    assert [name for _, name in blobs.reads] == ["table.csv"]


async def test_other_bytes_are_not_overwritten_and_nothing_is_downloaded(
    session: Session, blobs: FakeBlobs, tmp_path: Path
) -> None:
    blobs.publish(a_md=b"a", report_md=b"# Report")
    (tmp_path / "report.md").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"report\.md is there already"):
        await session.save_outputs(tmp_path)
    assert (below(tmp_path)["report.md"], blobs.reads) == (b"mine", [])
    await session.save_outputs(tmp_path, overwrite=True)
    assert (tmp_path / "report.md").read_bytes() == b"# Report"
    (tmp_path / "a.md").rename(tmp_path / "elsewhere.md")
    (tmp_path / "a.md").symlink_to(tmp_path / "elsewhere.md")
    with pytest.raises(FileExistsError):
        await session.save_outputs(tmp_path)


async def test_damaged_file_does_not_appear(session: Session, blobs: FakeBlobs, tmp_path: Path) -> None:
    blobs.publish(a_md=b"a", report_md=b"# Report")
    blobs.damaged.add("report.md")
    with pytest.raises(DataLoss):
        await session.save_outputs(tmp_path / "out")
    assert below(tmp_path / "out") == {"a.md": b"a"}


async def test_released_set_is_refused_after_the_others_are_saved(
    session: Session, blobs: FakeBlobs, tmp_path: Path
) -> None:
    blobs.released.add(blobs.publish(a_md=b"a"))
    blobs.publish(report_md=b"# Report")
    with pytest.raises(FailedPrecondition) as refused:
        await session.save_outputs(tmp_path / "out")
    assert refused.value.reason is Reason.ATTACHMENT_SET_STATE
    assert below(tmp_path / "out") == {"report.md": b"# Report"}


@pytest.mark.parametrize("name", ["../a.md", "/a.md", "..", "a/b"])
async def test_name_that_leads_out_of_the_directory_is_refused(
    session: Session, blobs: FakeBlobs, tmp_path: Path, name: str
) -> None:
    blobs.publish_named({"good.md": b"good", name: b"bad"})
    with pytest.raises(InvalidRequest) as refused:
        await session.save_outputs(tmp_path / "out")
    assert refused.value.reason is Reason.ATTACHMENTS_INVALID_NAME
    assert (set(below(tmp_path)), blobs.reads) == ({"mesh.json"}, [])


async def test_spawn_names_published_files_and_sends_none_of_their_bytes(
    mesh: FakeMesh, blobs: FakeBlobs, session: Session, keys: Path
) -> None:
    blobs.publish(report_md=b"# Report", table_csv=b"a,b")
    [one] = await published(session)
    attachments = [
        *one.references(),
        Attachment("own.md", b"own"),
        ReferencedFile(one.set_id, "report.md", new_name="again.md"),
    ]
    async with connected(mesh, keys) as client:
        await client.spawn("Sum up.", attachments=attachments)
    [request] = [one for one in mesh.sessions.requests if hasattr(one, "references")]
    assert [(item.name, item.data) for item in request.attachments] == [("own.md", b"own")]
    assert [(item.set_id, item.name, item.new_name) for item in request.references] == [
        (one.set_id, "report.md", ""),
        (one.set_id, "table.csv", ""),
        (one.set_id, "report.md", "again.md"),
    ]
    assert one.references("table.csv") == [ReferencedFile(one.set_id, "table.csv")]
    with pytest.raises(NotFound):
        one.references("other.md")


@pytest.mark.parametrize(("index", "name"), [(0, "own.md"), (1, "report.md"), (2, "again.md")])
async def test_refusal_counts_references_behind_all_other_files(
    mesh: FakeMesh, keys: Path, index: int, name: str
) -> None:
    mesh.sessions.refusal = MeshError(
        Reason.ATTACHMENTS_DUPLICATE_NAME, "two files have the same name", facts={"index": index}
    )
    set_id = new_id(IdKind.ATTACHMENT_SET)
    attachments = [
        ReferencedFile(set_id, "report.md"),
        ReferencedFile(set_id, "report.md", new_name="again.md"),
        Attachment("own.md", b"own"),
    ]
    async with connected(mesh, keys) as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.spawn("Sum up.", attachments=attachments)
    assert refused.value.facts["file"] == name
