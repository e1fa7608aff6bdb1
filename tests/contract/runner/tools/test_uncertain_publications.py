"""Publications whose outcome an outage hides, or that find other files under their request_id."""

import json
from collections import deque
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1 import output_pb2
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients import retry
from spawnmesh_runner.tools import publish_files

from tests.support.model_router.answers import calling
from tests.support.runner.fixtures import running_runner
from tests.support.runner.publications import PUBLISH, RESULT, TOOLS, WRITE, begun, results_of_run
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


@pytest.mark.parametrize("reason", [Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED])
async def test_ListOutputSets__during_an_outage_the_run_waits_and_what_was_published_is_found_then(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    """The files are not in this workspace, and that does not mean that they are lost."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)
    request_id = begun(mesh)
    mesh.outputs.published[request_id] = output_pb2.OutputSet(set_id="att_first")
    mesh.refusals["ListOutputSets"] = deque([MeshError(reason, "no answer", retry_after_seconds=0.01)] * 1000)
    mesh.queue_run(epoch=2, tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path / "two"):
        await eventually(lambda: mesh.delays or mesh.finalized or mesh.prompts)
    assert (len(mesh.delays), mesh.messages(RESULT)) == (1, [])
    mesh.refusals.clear()
    mesh.delays.clear()
    [text] = await results_of_run(mesh, keys, tmp_path / "three", epoch=3)
    assert json.loads(text)["set_id"] == "att_first"


async def test_ListOutputSets__a_call_that_no_earlier_runner_began_is_not_looked_for(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The run does not wait for the answer either: that would lose this runner's files."""
    mesh.refusals["ListOutputSets"] = deque([unavailable("session")] * 1000)
    mesh.answers.append(calling(("c1", "publish_files", '{"paths": ["b.md"]}'), WRITE, PUBLISH))
    lost, _, text = await results_of_run(mesh, keys, tmp_path)
    assert lost.startswith('NOT_FOUND: "b.md" is not in the workspace. What you wrote before')
    assert json.loads(text)["count"] == 1
    assert len(mesh.refusals["ListOutputSets"]) == 1000


async def test_ListOutputSets__a_refused_lookup_means_no_lost_files(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    begun(mesh)
    mesh.refusals["ListOutputSets"] = deque([MeshError(Reason.INTERNAL, "a defect")])
    [text] = await results_of_run(mesh, keys, tmp_path)
    assert text.startswith("OUTCOME_UNKNOWN: the session service refused to say (INTERNAL)")
    assert "may have been published, or not" in text


async def test_PublishFiles__other_files_that_a_lost_runner_sent_are_published_and_the_model_knows(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """That runner was lost when they were stored, before their set was found."""
    mesh.files = {"given.txt": b"given"}
    request_id = begun(mesh, json.dumps([f".spawnmesh/attachments/{mesh.set_id}/given.txt"]))
    changed = AttachmentFile(name="given.txt", size_bytes=7, sha256="0" * 64)
    mesh.outputs.stored_before = output_pb2.OutputSet(set_id="att_first", files=[changed], total_bytes=7)
    [text] = await results_of_run(mesh, keys, tmp_path)
    assert [one.request_id for one in mesh.outputs.requests] == [request_id]
    told = json.loads(text)
    assert (told["set_id"], told["files"][0]["sha256"]) == ("att_first", "0" * 64)
    assert told["note"].startswith("These are the files as this call published them first")


@pytest.mark.parametrize("lookup", ["none", "no answer"])
async def test_PublishFiles__the_model_is_not_asked_for_an_argument_that_it_does_not_have(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lookup: str
) -> None:
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)
    mesh.answers.append(calling(WRITE, PUBLISH))
    reused = MeshError(Reason.REQUEST_ID_REUSED, "use a new one", facts={"request_id": "r"})
    mesh.refusals["PublishFiles"] = deque([reused])
    if lookup == "no answer":
        refused = unavailable("session", retry_after_seconds=0.01)
        mesh.refusals["ListOutputSets"] = deque([refused] * 1000)
    [_, text] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert text.startswith("OUTCOME_UNKNOWN: ")
    assert "may have been published, or not. If they are needed, publish them again" in text
    assert "request_id" not in text.casefold()
    assert "use a new one" not in text


@pytest.mark.parametrize("reason", [Reason.REQUEST_ID_REUSED, Reason.DEADLINE_EXCEEDED])
async def test_ListOutputSets__a_call_that_was_published_although_it_failed_gets_its_set(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    monkeypatch.setattr(publish_files, "GIVE_UP_AFTER_SECONDS", 0.1)
    mesh.answers.append(calling(WRITE, PUBLISH))
    mesh.refusals["PublishFiles"] = deque([MeshError(reason, "no answer")] * 1000)
    mesh.outputs.always_listed.append(output_pb2.OutputSet(set_id="att_first"))
    [_, text] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert json.loads(text)["set_id"] == "att_first"


async def test_PublishFiles__a_publication_is_repeated_for_longer_than_other_calls(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the other calls' time the run goes to the queue, where its files are lost."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.001)
    mesh.answers.append(calling(WRITE, PUBLISH))
    mesh.refusals["PublishFiles"] = deque([unavailable("session", retry_after_seconds=0.01)] * 3)
    [_, text] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert json.loads(text)["count"] == 1


@pytest.mark.parametrize("rpc", ["PublishFiles", "UploadFile"])
async def test_PublishFiles__the_model_hears_of_an_outage_that_outlasts_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rpc: str
) -> None:
    monkeypatch.setattr(publish_files, "GIVE_UP_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 3)
    if rpc == "PublishFiles":
        monkeypatch.setattr(publish_files, "INLINE_FILE_BYTES", 6)
    mesh.answers.append(calling(WRITE, PUBLISH, ("c3", "write_file", '{"path": "b.md", "content": "b"}')))
    mesh.refusals[rpc] = deque([unavailable("S3", retry_after_seconds=0.01)] * 1000)
    [_, text, after] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert text.startswith("DEPENDENCY_UNAVAILABLE: the files were not published")
    assert text.endswith("publish them again later")
    assert json.loads(after)["path"] == "b.md", "the run goes on with its workspace"


async def test_PublishFiles__after_an_outage_the_model_hears_that_the_files_may_have_been_published(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last attempt may have published them, and the session service does not say."""
    monkeypatch.setattr(publish_files, "GIVE_UP_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)
    mesh.answers.append(calling(WRITE, PUBLISH, ("c3", "write_file", '{"path": "b.md", "content": "b"}')))
    for rpc in ("PublishFiles", "ListOutputSets"):
        mesh.refusals[rpc] = deque([unavailable("session", retry_after_seconds=0.01)] * 1000)
    [_, text, after] = await results_of_run(mesh, keys, tmp_path, epoch=1)
    assert text.startswith("OUTCOME_UNKNOWN: the session service did not say (DEPENDENCY_UNAVAILABLE)")
    assert "may have been published, or not. If they are needed, publish them again" in text
    assert "not published" not in text
    assert json.loads(after)["path"] == "b.md", "the run goes on with its workspace"
