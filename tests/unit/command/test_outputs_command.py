"""`spawnmesh outputs`, and published files in other commands, against services in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_command.cli.show import when
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, FakeMesh, event, mesh, session_in, unset
from tests.support.command.live import run_event
from tests.support.command.outputs import FakeBlobs, blobs

__all__ = ["blobs", "mesh", "unset"]

OTHER_RUN = new_id(IdKind.RUN)
SAVE = f"to download them: spawnmesh outputs {SESSION_ID} --save DIRECTORY"


def below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def ended(mesh: FakeMesh, blobs: FakeBlobs, **fields: Any) -> None:
    """Let the run end after it has published the files of the service."""
    files = [file for one in blobs.sets for file in one.files]
    mesh.sessions.outcome = session_in(
        fields.pop("state", session_pb2.RUN_STATE_SUCCEEDED), output_file_count=len(files),
        output_total_bytes=sum(file.size_bytes for file in files), **fields,
    )  # fmt: skip


async def test_files_are_listed_with_their_set_and_run_and_the_command_that_saves_them(
    mesh: FakeMesh, blobs: FakeBlobs
) -> None:
    first = blobs.publish(report_md=b"# Draft", table_csv=b"a,b\n1,2\n" * 3 + b"c,d\n3,")
    second = blobs.publish(more_txt=b"more")
    third = blobs.publish(run_id=OTHER_RUN, report_md=b"# Report")
    result = await mesh.run("outputs", SESSION_ID)
    assert (result.exit_code, result.stderr) == (0, "")
    times = [when(one.publish_time) for one in blobs.sets]
    assert result.stdout.splitlines() == [
        RUN_ID,
        f"  {first}  {times[0]}",
        "     7 bytes  text/plain  report.md",
        "    30 bytes  text/plain  table.csv",
        f"  {second}  {times[1]}",
        "    4 bytes  text/plain  more.txt",
        OTHER_RUN,
        f"  {third}  {times[2]}",
        "    8 bytes  text/plain  report.md",
        "",
        SAVE,
    ]
    of_run = await mesh.run("outputs", SESSION_ID, "--run", OTHER_RUN)
    assert of_run.stdout.splitlines()[:2] == [OTHER_RUN, f"  {third}  {times[2]}"]
    as_json = json.loads((await mesh.run("outputs", SESSION_ID, "--json")).stdout)
    assert [one["set_id"] for one in as_json["output_sets"]] == [first, second, third]
    assert as_json["output_sets"][0]["files"][1]["name"] == "table.csv"


async def test_session_without_files_has_no_command_that_saves_them(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    result = await mesh.run("outputs", SESSION_ID)
    assert (result.exit_code, result.stdout) == (0, "no published files\n")
    assert (await mesh.run("outputs", SESSION_ID, "--save", "out")).stdout == "no published files\n"


async def test_files_are_saved_and_an_earlier_version_is_below(
    mesh: FakeMesh, blobs: FakeBlobs, tmp_path: Path
) -> None:
    first = blobs.publish(report_md=b"# Draft")
    blobs.publish(report_md=b"# Report")
    out = tmp_path / "out"
    result = await mesh.run("outputs", SESSION_ID, "--save", str(out))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [f"{out}/{first}/report.md  7 bytes", f"{out}/report.md  8 bytes"]
    assert below(out) == {f"{first}/report.md": "# Draft", "report.md": "# Report"}
    (out / "report.md").write_text("mine")
    refused = await mesh.run("outputs", SESSION_ID, "--save", str(out))
    assert refused.exit_code == 1
    assert refused.stderr == "error: ALREADY_EXISTS: report.md is there already; --force overwrites it\n"
    forced = await mesh.run("outputs", SESSION_ID, "--save", str(out), "--force", "--json")
    assert [(one["path"], one["set_id"], one["run_id"]) for one in json.loads(forced.stdout)["files"]] == [
        (f"{out}/{first}/report.md", first, RUN_ID),
        (f"{out}/report.md", blobs.sets[1].set_id, RUN_ID),
    ]
    assert below(out)["report.md"] == "# Report"
    assert (await mesh.run("outputs", SESSION_ID, "--force")).exit_code == 2
    nowhere = await mesh.run("outputs", SESSION_ID, "--save", str(tmp_path / "a" / "b"))
    assert nowhere.exit_code == 1
    assert "cannot be written" in nowhere.stderr


async def test_names_of_an_agent_cannot_command_the_terminal(
    mesh: FakeMesh, blobs: FakeBlobs, tmp_path: Path
) -> None:
    blobs.publish_named({"a\x1b[2J\nb": b"x"})
    blobs.sets[0].files[0].mime_type = "x\x1b[2J"
    ended(mesh, blobs)
    save = ("outputs", SESSION_ID, "--save", str(tmp_path / "out"))
    for command in (("outputs", SESSION_ID), save, ("wait", SESSION_ID)):
        result = await mesh.run(*command)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert "a\\x1b[2J\\nb" in result.stdout


async def test_wait_names_the_files_of_the_run(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    blobs.publish(report_md=b"# Report", table_csv=b"a,b")
    ended(mesh, blobs, result="It is ready.")
    blobs.publish(run_id=OTHER_RUN, old_md=b"old")
    result = await mesh.run("wait", SESSION_ID)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(
        "\nIt is ready.\n\n"
        f"published files: 2, 11 bytes\n  report.md  8 bytes\n  table.csv  3 bytes\n{SAVE}\n"
    )
    as_json = json.loads((await mesh.run("wait", SESSION_ID, "--json")).stdout)
    assert as_json["latest_run"]["output_file_count"] == 2


async def test_spawn_that_waits_names_the_files_also_of_a_run_that_failed(
    mesh: FakeMesh, blobs: FakeBlobs
) -> None:
    blobs.publish(report_md=b"# Report")
    ended(mesh, blobs, state=session_pb2.RUN_STATE_FAILED)
    mesh.sessions.events = [run_event(1, session_pb2.RUN_STATE_FAILED, RUN_ID)]
    result = await mesh.run("spawn", "Write.", "--wait")
    assert result.exit_code == 1
    assert f"published files: 1, 8 bytes\n  report.md  8 bytes\n{SAVE}\n" in result.stdout
    assert "published" not in (await mesh.run("spawn", "Write.")).stdout


async def test_only_the_first_of_many_files_are_named(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    blobs.publish_named({f"{number}.txt": b"x" for number in range(25)})
    ended(mesh, blobs)
    printed = (await mesh.run("wait", SESSION_ID)).stdout
    assert "published files: 25, 25 bytes" in printed
    assert "\n  19.txt  1 bytes\n  and 5 more\nto download them" in printed


async def test_files_that_cannot_be_listed_are_counted(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    blobs.publish(report_md=b"# Report")
    ended(mesh, blobs)
    blobs.refusal = MeshError(Reason.ROLE_MISSING, "no")
    result = await mesh.run("wait", SESSION_ID)
    assert result.exit_code == 0
    assert result.stdout.endswith(f"published files: 1, 8 bytes\n{SAVE}\n")


async def test_watch_names_the_sets_and_at_the_end_the_files(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    blobs.publish(old_md=b"old")
    set_id = blobs.publish(report_md=b"# Report")
    mesh.sessions.events = [
        session_pb2.SessionEvent(
            number=1, kind=session_pb2.SESSION_EVENT_KIND_FILES_PUBLISHED, run_id=RUN_ID, set_id=set_id
        ),
        run_event(2, session_pb2.RUN_STATE_SUCCEEDED, RUN_ID),
        event(3, session_pb2.SESSION_EVENT_KIND_CLOSED),
    ]
    result = await mesh.run("watch", SESSION_ID)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"FILES_PUBLISHED  {RUN_ID}  {set_id}\n" in result.stdout
    assert result.stdout.endswith(f"CLOSED\n\npublished files: 1, 8 bytes\n  report.md  8 bytes\n{SAVE}\n")
    lines = (await mesh.run("watch", SESSION_ID, "--json")).stdout.splitlines()
    assert [json.loads(line)["session_event"]["set_id"] for line in lines] == [set_id, "", ""]


async def test_spawn_takes_files_of_sets_by_name_and_all_together(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    set_id = blobs.publish(report_md=b"# Report", table_csv=b"a,b")
    names = [f"{set_id}/report.md:first draft.md", set_id, f"{set_id}/a b@c.md"]
    options = [part for name in names for part in ("--attach-from", name)]
    result = await mesh.run("spawn", "Read.", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    [request] = mesh.sessions.requests
    assert [(one.set_id, one.name, one.new_name) for one in request.references] == [
        (set_id, "report.md", "first draft.md"),
        (set_id, "report.md", ""),
        (set_id, "table.csv", ""),
        (set_id, "a b@c.md", ""),
    ]
    assert blobs.reads == []


@pytest.mark.parametrize(
    "text", ["report.md", "att_1/report.md", "SET/", "SET/a:", "SET/:b", "ses" + "0" * 27]
)
async def test_malformed_reference_is_wrong_usage(mesh: FakeMesh, text: str) -> None:
    result = await mesh.run(
        "spawn", "Read.", "--attach-from", text.replace("SET", new_id(IdKind.ATTACHMENT_SET))
    )
    assert (result.exit_code, mesh.sessions.requests) == (2, [])
    assert "--attach-from" in result.stderr


async def test_set_that_is_not_there_is_refused_with_advice(mesh: FakeMesh, blobs: FakeBlobs) -> None:
    result = await mesh.run("spawn", "Read.", "--attach-from", new_id(IdKind.ATTACHMENT_SET))
    assert (result.exit_code, mesh.sessions.requests) == (1, [])
    assert "`spawnmesh attachments list` lists what there is" in result.stderr
    set_id = blobs.publish(report_md=b"# Report")
    blobs.released.add(set_id)
    gone = await mesh.run("spawn", "Read.", "--attach-from", set_id)
    assert (gone.exit_code, mesh.sessions.requests) == (1, [])
    assert "ATTACHMENT_SET_STATE" in gone.stderr


@pytest.mark.parametrize(
    ("resource", "advice"),
    [("attachment set", "attachments list"), ("file of that name in attachment set", "attachments show X")],
)
async def test_spawn_that_was_undone_names_the_command_that_lists_what_there_is(
    mesh: FakeMesh, resource: str, advice: str
) -> None:
    facts = {"cause": "NOT_FOUND", "step": "provision", "resource": resource, "id": "X"}
    mesh.sessions.refusal = MeshError(
        Reason.SPAWN_FAILED, "undone", status=Status.FAILED_PRECONDITION, facts=facts
    )
    result = await mesh.run("spawn", "Read.", "--attach-from", f"{new_id(IdKind.ATTACHMENT_SET)}/a.md")
    assert result.exit_code == 1
    assert result.stderr.endswith(f". `spawnmesh {advice}` lists what there is\n")


async def test_attachments_show_the_run_of_a_set_and_not_that_it_was_published(
    mesh: FakeMesh, blobs: FakeBlobs
) -> None:
    set_id = blobs.publish(report_md=b"# Report")
    listed = (await mesh.run("attachments", "list")).stdout.rstrip()
    assert listed.endswith(RUN_ID)
    assert listed.splitlines()[0].split() == [
        "set", "state", "session", "created", "files", "bytes", "run",
    ]  # fmt: skip
    shown = (await mesh.run("attachments", "show", set_id)).stdout
    assert shown.splitlines()[0] == f"{set_id} ATTACHED, of {SESSION_ID}, 8 bytes, run {RUN_ID}"
