"""Published files of a mesh in memory, as the tests of a program use it."""

from io import BytesIO
from pathlib import Path

import pytest
from spawnmesh_client import (
    Attachment,
    EventKind,
    FailedPrecondition,
    InvalidRequest,
    Reason,
    ReferencedFile,
    SessionMode,
    sync,
)
from spawnmesh_client.testing import FakeMesh


async def test_scripted_run_publishes_files_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    mesh = FakeMesh()
    mesh.publishes(Attachment("report.md", b"# Draft"), str(tmp_path / "table.csv"))
    mesh.publishes(Attachment("report.md", BytesIO(b"# Report")))
    mesh.answers("It is ready.")
    session = await mesh.spawn("Write a report.")
    result = await session.result()
    assert (result.text, result.run.output_file_count, result.run.output_total_bytes) == (
        "It is ready.",
        3,
        18,
    )
    first, second = [one async for one in session.outputs()]
    assert [(file.name, file.size_bytes, file.mime_type) for file in first.files] == [
        ("report.md", 7, "text/markdown"),
        ("table.csv", 3, "text/csv"),
    ]
    assert (first.run_id, first.session_id, first.total_bytes) == (result.run.run_id, session.session_id, 10)
    events = [event for event in [one async for one in session.events()] if event.set_id]
    assert [(event.kind, event.run_id, event.set_id) for event in events] == [
        (EventKind.FILES_PUBLISHED, first.run_id, first.set_id),
        (EventKind.FILES_PUBLISHED, first.run_id, second.set_id),
    ]
    paths = await session.save_outputs(tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")): path.read_text() for path in paths} == {
        f"{first.set_id}/report.md": "# Draft",
        "table.csv": "a,b",
        "report.md": "# Report",
    }
    assert [one async for one in session.outputs(run_id="run_other")] == []
    assert (await mesh.run("Next.")).text == "done"


async def test_sets_of_the_tenant_say_which_run_published_them() -> None:
    mesh = FakeMesh()
    mesh.publishes(Attachment("report.md", b"# Report"))
    session = await mesh.spawn("Write.", attachments=[Attachment("in.txt", b"in")])
    run = (await session.result()).run
    found = [one async for one in mesh.files.sets(session_id=session.session_id)]
    assert [(one.run_id, len(one.files), one.state) for one in found] == [
        (run.run_id, 1, "ATTACHED"),
        ("", 0, "RELEASED"),
    ]
    with pytest.raises(FailedPrecondition) as released:
        await mesh.files.download(found[1].set_id, "in.txt")
    assert released.value.reason is Reason.ATTACHMENT_SET_STATE


async def test_published_files_are_handed_to_another_session() -> None:
    mesh = FakeMesh()
    mesh.publishes(Attachment("report.md", b"# Report"), Attachment("table.csv", b"a,b"))
    writer = await mesh.spawn("Write.")
    await writer.result()
    [published] = [one async for one in writer.outputs()]
    renamed = ReferencedFile(published.set_id, "report.md", new_name="again.md")
    reader = await mesh.spawn("Read.", attachments=[renamed, *published.references(), Attachment("a", b"1")])
    assert reader.receipt is not None
    assert [file.name for file in reader.receipt.files] == ["a", "again.md", "report.md", "table.csv"]
    assert mesh.spawned[1].files["again.md"] == b"# Report"
    await writer.delete()
    assert mesh.spawned[0].files["table.csv"] == b"a,b"


async def test_references_to_nothing_are_refused() -> None:
    mesh = FakeMesh()
    mesh.publishes(Attachment("report.md", b"# Report"))
    writer = await mesh.spawn("Write.", attachments=[Attachment("in.txt", b"in")])
    await writer.result()
    [published] = [one async for one in writer.outputs()]
    assert writer.receipt is not None
    for reference, kind, reason in (
        (ReferencedFile("att_" + "0" * 26, "report.md"), FailedPrecondition, Reason.SPAWN_FAILED),
        (ReferencedFile(published.set_id, "other.md"), FailedPrecondition, Reason.SPAWN_FAILED),
        (ReferencedFile(writer.receipt.set_id, "in.txt"), FailedPrecondition, Reason.ATTACHMENT_SET_STATE),
        (ReferencedFile("att_1", "in.txt"), InvalidRequest, Reason.INVALID_REQUEST),
    ):
        with pytest.raises(kind) as refused:
            await mesh.spawn("Read.", attachments=[reference, Attachment("own.md", b"own")])
        assert refused.value.reason is reason
        if reason is not Reason.INVALID_REQUEST:
            assert (refused.value.facts["index"], refused.value.facts["file"]) == ("1", reference.name)
        if reason is Reason.SPAWN_FAILED:
            assert refused.value.facts["cause"] == "NOT_FOUND"
    twice = [*published.references(), Attachment("report.md", b"mine")]
    with pytest.raises(InvalidRequest) as duplicate:
        await mesh.spawn("Read.", attachments=twice)
    assert duplicate.value.reason is Reason.ATTACHMENTS_DUPLICATE_NAME
    assert (duplicate.value.facts["file"], duplicate.value.facts["index"]) == ("report.md", "1")
    assert len(mesh.spawned) == 1


async def test_files_are_there_while_the_run_is_held() -> None:
    mesh = FakeMesh()
    mesh.publishes(Attachment("report.md", b"# Report"))
    mesh.holds()
    session = await mesh.spawn("Write.", mode=SessionMode.SESSION)
    [published] = [one async for one in session.outputs()]
    assert published.files[0].name == "report.md"
    await session.kill()
    assert len([one async for one in session.outputs()]) == 1


def test_script_refuses_no_files_and_two_of_one_name() -> None:
    mesh = FakeMesh()
    with pytest.raises(ValueError, match="give the files"):
        mesh.publishes()
    with pytest.raises(InvalidRequest):
        mesh.publishes(Attachment("a", b"1"), Attachment("a", b"2"))


def test_blocking_methods_save_files_too(tmp_path: Path) -> None:
    fake = FakeMesh()
    fake.publishes(Attachment("report.md", b"# Report"))
    with sync.blocking(fake) as mesh:
        session = mesh.spawn("Write.")
        session.result()
        assert [file.name for one in session.outputs() for file in one.files] == ["report.md"]
        assert session.save_outputs(tmp_path) == [tmp_path / "report.md"]
