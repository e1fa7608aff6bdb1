"""The tool `publish_files` between the real services."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.domain.request_ids import call_request_id
from spawnmesh_runtime.impersonation import use_token

from tests.support.runner.real_services import Among, Messages, Said, answer_of, open_among
from tests.support.session.harness import OpenMesh
from tests.support.session.outputs import RELEASED, file, listed, publish
from tests.support.waiting import eventually

MIB = 1024 * 1024


def wrote(path: str, content: str) -> Said:
    return "write_file", {"path": path, "content": content}


def published(*paths: str | Mapping[str, str]) -> Said:
    return "publish_files", {"paths": list(paths)}


async def test_published_files_are_listed_and_can_be_read_when_the_run_has_ended(among: Among) -> None:
    named = {"path": "b/report.md", "name": "report-b.md"}
    await among.put(
        "writer",
        wrote("a/report.md", "# 42"),
        wrote("b/report.md", "# 43"),
        wrote("empty.csv", ""),
        published("a/report.md", named, "empty.csv"),
        "Done.",
    )
    async with among.start_runner():
        session = await among.run("writer")
    contents = {"report.md": b"# 42", "report-b.md": b"# 43", "empty.csv": b""}
    [found] = await listed(among.mesh, session.session_id)
    assert json.loads(among.results("writer")[-1]) == {
        "set_id": found.set_id,
        "count": 3,
        "total_bytes": 8,
        "files": [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in contents.items()
        ],
    }
    assert [one.mime_type for one in found.files] == ["text/markdown", "text/markdown", "text/csv"]
    assert {name: await among.blobs.read(found.set_id, name) for name in contents} == contents
    assert session.latest_run.output_file_count == 3


async def test_only_files_of_the_workspace_are_published(among: Among, tmp_path: Path) -> None:
    """A refused file refuses the call, and nothing is published."""
    (outside := tmp_path.parent / f"{tmp_path.name}-outside").mkdir()
    (outside / "secret.txt").write_text("SECRET")

    def planted(_messages: Messages) -> Said:
        workspace = among.workspace
        (workspace / "link.txt").symlink_to(outside / "secret.txt")
        (workspace / "linked").symlink_to(outside)
        os.link(outside / "secret.txt", workspace / "hard.txt")
        os.mkfifo(workspace / "pipe")
        return published("a.md", "missing.md")

    refusals = {
        'NOT_FOUND: "missing.md": there is no such': planted,
        'NOT_A_FILE: "dir": that is not a regular file': published("dir"),
        'NOT_A_FILE: "pipe": that is not a regular file': published("pipe"),
        'NOT_A_DIRECTORY: "a.md/b": that is not a directory': published("a.md/b"),
        'INVALID_PATH: "../secret.txt": give a path': published("a.md", "../secret.txt"),
        'INVALID_PATH: "/etc/passwd": give a path': published("/etc/passwd"),
        'UNSAFE_PATH: "link.txt": symbolic and hard': published("a.md", "link.txt"),
        'UNSAFE_PATH: "linked/secret.txt": symbolic': published("linked/secret.txt"),
        'UNSAFE_PATH: "hard.txt": symbolic and hard': published("hard.txt"),
        'ATTACHMENTS_DUPLICATE_NAME: "dir/a.md": ': published("a.md", "dir/a.md"),
        'ATTACHMENTS_INVALID_NAME: "a.md": ': published({"path": "a.md", "name": "../a.md"}),
    }
    await among.put("writer", wrote("a.md", "a"), wrote("dir/a.md", "b"), *refusals.values(), "Done.")
    async with among.start_runner():
        session = await among.run("writer")
    texts = among.results("writer")[2:]
    begun = [text[: len(said)] for text, said in zip(texts, refusals, strict=True)]
    assert begun == list(refusals)
    assert "SECRET" not in "".join(texts)
    assert await listed(among.mesh, session.session_id) == []
    assert await among.blobs.sets() == []


async def test_the_limits_of_the_tenant_are_said_with_their_numbers(among: Among) -> None:
    def planted(_messages: Messages) -> Said:
        for number in range(51):
            (among.workspace / f"{number}").write_bytes(bytes(MIB) if number < 6 else b"")
        (among.workspace / "large").write_bytes(bytes(MIB + 1))
        return published("50", "large")

    await among.put(
        "writer",
        planted,
        published(*map(str, range(51))),
        published(*map(str, range(6))),
        published(*map(str, range(5))),
        "Done.",
    )
    async with among.start_runner():
        session = await among.run("writer")
    large, many, total, fitting = among.results("writer")
    assert large.startswith('ATTACHMENTS_FILE_BYTES_EXCEEDED: "large": ')
    assert f"limit_bytes: {MIB}" in large
    assert many.startswith("ATTACHMENTS_FILE_COUNT_EXCEEDED: ")
    assert "(count: 51, limit: 50)" in many
    assert total.startswith('ATTACHMENTS_TOTAL_BYTES_EXCEEDED: "5": ')
    assert f"limit_bytes: {5 * MIB}" in total
    assert json.loads(fitting)["total_bytes"] == 5 * MIB
    assert len(await listed(among.mesh, session.session_id)) == 1


async def test_files_that_are_too_large_for_a_request_are_uploaded(
    open_mesh: OpenMesh, peers: dict[str, str], keys: Path, tmp_path: Path, empty_queue: None
) -> None:
    limits = AttachmentLimits(
        enabled=True, max_file_count=20, max_file_bytes=8 * MIB, max_total_bytes=32 * MIB
    )
    contents = {"large.bin": os.urandom(3 * MIB + 7)}
    contents |= {f"{number}.bin": os.urandom(MIB) for number in range(10)}
    settings = TenantSettings(attachments=limits)
    async with open_among(open_mesh, peers, keys, tmp_path, settings) as among:

        def planted(_messages: Messages) -> Said:
            for name, data in contents.items():
                (among.workspace / name).write_bytes(data)
            return published(*contents)

        await among.put("writer", planted, "Done.")
        async with among.start_runner():
            session = await among.run("writer")
        [found] = await listed(among.mesh, session.session_id)
        names = [one.name for one in found.files]
        assert names == [*(f"{number}.bin" for number in range(8)), "large.bin", "8.bin", "9.bin"]
        assert {name: await among.blobs.read(found.set_id, name) for name in names} == contents
        assert json.loads(among.results("writer")[-1])["set_id"] == found.set_id


async def begun_by_another_runner(among: Among, *, is_published: bool) -> tuple[str, str]:
    """Let this test be a runner that makes a call and is lost before it appends the result.

    Return the session's id and that of the published set.
    """
    spawned = await among.mesh.spawn(agent_id="writer")
    held = await among.mesh.claim(spawned.session_id)
    claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
    stub, session_id = TranscriptServiceStub(among.transcript.channel), spawned.session_id
    body = entry_pb2.EntryBody(message=answer_of(published("report.txt")))
    with use_token(held.run_token):
        await among.transcript.unary(
            stub.AcquireWriter, transcript_pb.AcquireWriterRequest(session_id=session_id, claim=claim)
        )
        appended = await among.transcript.unary(
            stub.AppendEntries,
            transcript_pb.AppendEntriesRequest(
                session_id=session_id, claim=claim, request_id="answer", entries=[body]
            ),
        )
    set_id = ""
    if is_published:
        request_id = call_request_id(appended.entries[0].entry_id, 0)
        set_id = (await publish(among.mesh, held, file(), request_id=request_id)).set_id
    released = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
    await among.mesh.run(held, among.mesh.runs.ReleaseRun, released)
    return session_id, set_id


async def test_the_next_runner_finds_what_the_lost_one_has_published(among: Among) -> None:
    await among.put("writer", "It is not asked for.", "Done.")
    session_id, set_id = await begun_by_another_runner(among, is_published=True)
    async with among.start_runner():
        await among.ended(session_id)
    [text] = among.results("writer")
    assert json.loads(text)["set_id"] == set_id
    assert [one.set_id for one in await listed(among.mesh, session_id)] == [set_id]


async def test_the_files_of_a_lost_runner_that_published_nothing_are_lost(among: Among) -> None:
    def again(_messages: Messages) -> Said:
        return wrote("report.txt", "42\n")

    await among.put("writer", "It is not asked for.", again, published("report.txt"), "Done.")
    session_id, _ = await begun_by_another_runner(among, is_published=False)
    async with among.start_runner():
        await among.ended(session_id)
    lost, _, text = among.results("writer")
    assert lost.startswith('NOT_FOUND: "report.txt" is not in the workspace. What you wrote before')
    assert json.loads(text)["count"] == 1


async def test_what_a_run_has_published_is_released_with_its_session(among: Among) -> None:
    """The run is still at work when a person deletes its session."""
    working, never = asyncio.Event(), asyncio.Event()

    async def hold(_messages: Messages) -> Said:
        working.set()
        await never.wait()
        return "Done."

    await among.put("writer", wrote("a.md", "a"), published("a.md"), hold)
    async with among.start_runner():
        spawned = await among.mesh.spawn(agent_id="writer")
        await eventually(working.is_set)
        [found] = await listed(among.mesh, spawned.session_id)
        request = session_pb.DeleteSessionRequest(session_id=spawned.session_id)
        await among.mesh.client(among.mesh.sessions.DeleteSession, request)
        await eventually(lambda: not any(among.workspace_root.iterdir()))

    async def is_released() -> bool:
        return (await among.blobs.get(found.set_id)).state == RELEASED

    await eventually(is_released)
    with pytest.raises(MeshError) as missing:
        await listed(among.mesh, spawned.session_id)
    assert missing.value.reason is Reason.NOT_FOUND
