"""Publications whose runner was lost, that are uploaded or interrupted, or that a person must approve."""

import asyncio
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile, InlineAttachment
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.session.v1 import approval_pb2, output_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_client.turn_messages import text_message, text_of
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients import retry
from spawnmesh_runner.tools import publish_files
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.publications import PUBLISH, RESULT, TOOLS, WRITE, begun, results_of_run
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


async def test_PublishFiles__a_small_file_is_published_under_the_call_s_request_id(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(calling(WRITE, PUBLISH))
    [_, text] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    [request] = mesh.outputs.requests
    assert (request.epoch, len(request.files), len(request.uploads)) == (1, 1, 0)
    assert request.files[0] == InlineAttachment(name="a.md", data=b"report", mime_type="text/markdown")
    assert request.request_id.startswith("call:")
    published = mesh.outputs.published[request.request_id]
    assert json.loads(text) == {
        "set_id": published.set_id,
        "count": 1,
        "total_bytes": 6,
        "files": [{"name": "a.md", "bytes": 6, "sha256": published.files[0].sha256}],
    }
    assert mesh.outputs.lookups == [], "no earlier runner can have published"


async def test_ListOutputSets__the_next_runner_finds_what_was_published_before_the_kill(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The first runner is lost between the publication and the append of its result."""
    mesh.answers.append(calling(WRITE, PUBLISH))
    mesh.outputs.hold_answer = asyncio.Event()
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path / "one", drain_grace_seconds=0.1):
        await eventually(lambda: mesh.outputs.requests)
    assert len(mesh.messages(RESULT)) == 1, "the publication has no result"
    mesh.outputs.hold_answer.set()
    [_, text] = await results_of_run(mesh, keys, tmp_path / "two")
    [published] = mesh.outputs.published.values()
    assert json.loads(text)["set_id"] == published.set_id
    assert len(mesh.outputs.requests) == 1
    assert [one.session_id for one in mesh.outputs.lookups] == [mesh.session_id]


async def test_ListOutputSets__without_the_files_and_without_a_set_they_are_lost(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    begun(mesh)
    [text] = await results_of_run(mesh, keys, tmp_path)
    assert text.startswith('NOT_FOUND: "a.md" is not in the workspace. What you wrote before your runner')
    assert text.endswith("is lost: write it and publish it again")
    assert mesh.outputs.requests == []


async def test_PublishFiles__a_repeat_with_its_attached_files_is_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.files = {"given.txt": b"given"}
    path = f".spawnmesh/attachments/{mesh.set_id}/given.txt"
    request_id = begun(mesh, json.dumps([path]))
    [text] = await results_of_run(mesh, keys, tmp_path)
    assert json.loads(text)["set_id"] == mesh.outputs.published[request_id].set_id


async def test_PublishFiles__a_file_that_is_too_large_for_the_request_is_uploaded_before(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the request is that of the small files, then that of the large ones."""
    monkeypatch.setattr(publish_files, "MAX_INLINE_BYTES", 7)
    writes = [
        (f"w{size}", "write_file", json.dumps({"path": f"{size}.txt", "content": "x" * size}))
        for size in (8, 6, 2, 1, 0)
    ]
    paths = ["8.txt", "6.txt", "2.txt", "1.txt", "0.txt"]
    mesh.answers.append(calling(*writes, ("c2", "publish_files", json.dumps({"paths": paths}))))
    texts = await results_of_run(mesh, keys, tmp_path, epoch=1)
    [request] = mesh.outputs.requests
    assert [one.name for one in request.files] == ["6.txt", "1.txt", "0.txt"]
    assert [mesh.outputs.uploads[one.upload_id] for one in request.uploads] == [
        ("8.txt", b"x" * 8),
        ("2.txt", b"xx"),
    ]
    assert [one["bytes"] for one in json.loads(texts[-1])["files"]] == [6, 1, 0, 8, 2]


async def test_UploadFile__the_opened_file_is_sent_whatever_its_name_leads_to(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the run may put a symbolic link in its place between two reads."""
    (tmp_path / "secret").write_text("SECRET")
    monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 3)
    mesh.answers.append(calling(WRITE, PUBLISH))

    def put_link() -> None:
        (file,) = (tmp_path / "root").glob("*/a.md")
        file.unlink()
        file.symlink_to(tmp_path / "secret")

    mesh.outputs.on_upload = put_link
    await results_of_run(mesh, keys, tmp_path / "root", epoch=1)
    assert list(mesh.outputs.uploads.values()) == [("a.md", b"report")]


async def test_UploadFile__a_file_that_was_changed_while_it_was_read_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 3)
    mesh.answers.append(calling(WRITE, PUBLISH))

    def shorten() -> None:
        (file,) = tmp_path.glob("*/a.md")
        file.write_bytes(b"rep")

    mesh.outputs.on_upload = shorten
    [_, text] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert text.startswith('FILE_CHANGED: "a.md" was changed while it was read; publish it when')
    assert mesh.outputs.requests == []


async def test_PublishFiles__a_refusal_of_one_file_names_its_path_and_its_numbers(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 3)
    facts = {"index": 1, "limit_bytes": 5}
    refused = MeshError(Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED, "a file is too large", facts=facts)
    mesh.refusals["PublishFiles"] = deque([refused])
    small = ("c0", "write_file", '{"path": "b.md", "content": "b"}')
    mesh.answers.append(calling(WRITE, small, ("c2", "publish_files", '{"paths": ["a.md", "b.md"]}')))
    *_, text = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert text == 'ATTACHMENTS_FILE_BYTES_EXCEEDED: "a.md": a file is too large (limit_bytes: 5)'


@pytest.mark.parametrize("by", ["policy", "plugin"])
async def test_RequestApproval__a_publication_cannot_wait_for_a_person(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, by: str
) -> None:
    """Its files would be lost with the workspace, so no person is asked in vain."""
    policy = approval_pb2.ApprovalPolicy(tools=["publish_*"]) if by == "policy" else None
    if by == "plugin":
        mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
        mesh.hooks.approval_reason = "cfo: too much"
        mesh.answers.append(calling(PUBLISH))
    else:
        mesh.answers.append(calling(WRITE, PUBLISH))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=TOOLS, approval=policy)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    text = text_of(mesh.messages(RESULT)[-1])
    assert text.startswith("APPROVAL_NOT_POSSIBLE: a person must approve this call, and files of")
    assert (mesh.approvals.requests, mesh.outputs.requests) == ([], [])


class CountedTokens(TokenMinter):
    """The tokens of the heartbeats, and their number."""

    count = 0

    def run_token(self, *arguments: Any) -> str:
        self.count += 1
        return super().run_token(*arguments)


async def test_InterruptRun__a_publication_is_finished_and_its_result_is_kept(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(calling(WRITE, PUBLISH, ("c3", *WRITE[1:])))
    mesh.outputs.hold_answer = asyncio.Event()
    mesh.minter = tokens = CountedTokens("session", keys / "session.pem")
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.outputs.requests)
        mesh.change(run_pb.INTERRUPT_RUN)
        reported_count = tokens.count + 2  # The runner knows before it sends the next heartbeat.
        await eventually(lambda: tokens.count >= reported_count)
        mesh.outputs.hold_answer.set()
        await eventually(lambda: mesh.interrupted)
    [_, text, after] = map(text_of, mesh.messages(RESULT))
    [published] = mesh.outputs.published.values()
    assert json.loads(text)["set_id"] == published.set_id
    assert after.startswith("INTERRUPTED: ")


async def test_InterruptRun__an_upload_is_cut_short_and_nothing_is_published(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call resumes it."""
    monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 3)
    uploading = asyncio.Event()
    mesh.outputs.on_upload, mesh.outputs.hold_upload = uploading.set, asyncio.Event()
    mesh.answers += [calling(WRITE, PUBLISH, ("c3", *WRITE[1:])), calling(("c4", *PUBLISH[1:]))]
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(uploading.is_set)
        mesh.inbox.append(run_pb.InboxMessage(key="m1", text="Hurry."))
        mesh.change(run_pb.INTERRUPT_TURN)
        await eventually(lambda: len(mesh.messages(RESULT)) >= 3)
        assert mesh.outputs.requests == []
        mesh.outputs.hold_upload.set()
        await eventually(lambda: mesh.finalized or mesh.failed)
    _, cut, after, text = map(text_of, mesh.messages(RESULT))
    assert cut.startswith("INTERRUPTED: you were interrupted during this call; make it again")
    assert after.startswith("INTERRUPTED: you were interrupted before this call")
    assert json.loads(text)["count"] == 1


def stored_result(mesh: ScriptedMesh, call: tuple[str, str, str]) -> None:
    """Store a call that an earlier runner made, and its result."""
    mesh.write(calling(call))
    result = text_message(RESULT, "{}")
    result.tool_call_id, result.tool_name = call[0], call[1]
    mesh.write(result)


async def test_ClaimRuns__the_note_of_lost_files_says_what_fetch_files_brings_back(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    stored_result(mesh, WRITE)
    mesh.outputs.published["x"] = output_pb2.OutputSet(files=[AttachmentFile(name=name) for name in "abc"])
    await results_of_run(mesh, keys, tmp_path)
    note = mesh.prompts[-1].system_prompt
    assert "The files that you published (3) are kept: fetch_files brings a set of them back." in note
    assert "What fetch_files brought there" not in note
    assert "- a.md" in note


async def test_ClaimRuns__fetched_files_of_an_earlier_runner_are_lost_too(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    stored_result(mesh, ("c1", "fetch_files", json.dumps({"set_id": mesh.set_id})))
    await results_of_run(mesh, keys, tmp_path)
    note = mesh.prompts[-1].system_prompt
    assert note.endswith("What fetch_files brought there is gone, too: fetch it again.")
    assert "The files that you published" not in note


async def test_ReadFile__an_outage_delays_the_run_and_the_set_is_fetched_then(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)
    mesh.answers += [calling(("c1", "fetch_files", json.dumps({"set_id": mesh.set_id}))), saying("Done.")]
    mesh.refusals["ReadFile"] = deque([unavailable("S3", retry_after_seconds=0.01)] * 1000)
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path):
        mesh.files = {"a.md": b"report"}  # They are no files of the session's receipt.
        await eventually(lambda: mesh.delays)
        mesh.refusals.clear()
        mesh.files.clear()
        mesh.queue_run(epoch=2, tools=TOOLS)
        mesh.files = {"a.md": b"report"}
        await eventually(lambda: mesh.finalized or mesh.failed)
    [result] = mesh.messages(RESULT)
    assert json.loads(text_of(result))["rel_dir"] == f".spawnmesh/attachments/{mesh.set_id}"
