"""The Python client and the `attachments` commands against the real service."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_client.attachment_sets import download_file, get_set
from spawnmesh_client.attachment_uploads import CHUNK_BYTES, upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.spawn_attachments import INLINE_FILE_BYTES, prepare_attachments
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant, key_of_hash
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import PART, WHOLE, content, ref, stage_uploads
from tests.support.command.fake_mesh import invoke, unset, write_mesh_file

__all__ = ["unset"]

BIG = content(2 * PART + 7)


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE, download_url_lifetime=Duration(seconds=60))
    return tenant


def peer_of(tenant: Tenant) -> TokenPeer:
    return TokenPeer(tenant.service.peer.connection, tenant.client_token())


@dataclass(frozen=True, slots=True)
class CutPeer(TokenPeer):
    """Breaks the first streams, each after so many messages, as a network does."""

    cuts: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    async def unary(self, method: Any, request: Any, *, timeout_seconds: float = 60.0) -> Any:
        if not isinstance(request, AsyncIterator):
            return await TokenPeer.unary(self, method, request, timeout_seconds=timeout_seconds)
        messages = [message async for message in request]
        self.sent.append(len(messages))
        cut = self.cuts.pop(0) if len(messages) > 1 and self.cuts else None

        async def stream() -> AsyncIterator[Any]:
            for message in messages[:cut]:
                yield message

        answer = await TokenPeer.unary(self, method, stream(), timeout_seconds=timeout_seconds)
        if cut is not None:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "cut", retry_after_seconds=0.01)
        return answer

    async def stream(self, method: Any, request: Any, *, timeout_seconds: float) -> AsyncGenerator[Any, None]:
        left = self.cuts.pop(0) if self.cuts else None
        async for message in TokenPeer.stream(self, method, request, timeout_seconds=timeout_seconds):
            if left == 0:
                raise unavailable("attachment-blob")
            left = None if left is None else left - 1
            yield message


async def test_a_file_is_uploaded_once(tenant: Tenant, tmp_path: Path) -> None:
    (file := tmp_path / "big.bin").write_bytes(BIG)
    told: list[tuple[str, int, int]] = []
    peer = CutPeer(tenant.service.peer.connection, tenant.client_token())

    first = await upload_file(peer, file, lambda *progress: told.append(progress))
    again = await upload_file(peer, file)
    renamed = await upload_file(peer, Attachment("other.bin", BIG))

    assert first.state == upload_pb2.UPLOAD_STATE_COMPLETE
    assert (first.name, first.size_bytes, first.mime_type) == (
        "big.bin",
        len(BIG),
        "application/octet-stream",
    )
    assert again == first
    assert renamed.upload_id != first.upload_id
    assert peer.sent == [1, 1 + len(range(0, len(BIG), CHUNK_BYTES)) + 1, 1, 1]
    assert told[0] == ("big.bin", 0, len(BIG))
    assert told[-1] == ("big.bin", len(BIG), len(BIG))
    staged = await stage_uploads(tenant, ref(first.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == BIG


async def test_an_interrupted_upload_resumes_at_its_durable_offset(tenant: Tenant) -> None:
    peer = CutPeer(tenant.service.peer.connection, tenant.client_token(), [8, 4])
    starts: list[int] = []

    def note(_name: str, done: int, _size: int) -> None:
        if not starts or done < starts[-1] or done % PART == 0:
            starts.append(done)

    upload = await upload_file(peer, Attachment("big.bin", BIG), note)

    assert upload.state == upload_pb2.UPLOAD_STATE_COMPLETE
    whole = 1 + len(range(0, len(BIG), CHUNK_BYTES)) + 1
    assert peer.sent[0:2] == [1, whole]
    assert peer.sent[2] == whole - PART // CHUNK_BYTES
    assert peer.cuts == []


async def test_an_empty_file_and_one_of_a_single_chunk(tenant: Tenant) -> None:
    for data in (b"", b"x"):
        upload = await upload_file(peer_of(tenant), Attachment(f"{len(data)}.bin", data))
        staged = await stage_uploads(tenant, ref(upload.upload_id))
        assert await tenant.read(staged.set_id, upload.name) == data


async def test_a_file_over_the_limits_is_refused_before_its_bytes_are_sent(
    tenant: Tenant,
) -> None:
    await tenant.prepare(2, max_file_bytes=10)
    peer = CutPeer(tenant.service.peer.connection, tenant.client_token())

    with pytest.raises(MeshError) as refused:
        await upload_file(peer, Attachment("big.bin", BIG))

    assert refused.value.reason is Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED
    assert peer.sent == [1]


async def test_small_files_are_inline_and_other_files_are_uploaded(tenant: Tenant, tmp_path: Path) -> None:
    (large := tmp_path / "large").write_bytes(content(INLINE_FILE_BYTES + 1))
    (exact := tmp_path / "exact").write_bytes(content(INLINE_FILE_BYTES))
    files: list[Path | Attachment] = [Attachment("a", b"a"), large, exact, Attachment("last", b"12345")]

    over = await prepare_attachments(peer_of(tenant), files, INLINE_FILE_BYTES + 5, lambda *_: None)

    assert [item.name for item in over.inline] == ["a", "exact"]
    staged = await stage_uploads(
        tenant, *(ref(upload.upload_id) for upload in over.uploads), items=over.inline
    )
    assert [file.name for file in staged.files] == list(over.names) == ["a", "exact", "large", "last"]


async def test_a_refused_file_is_named(tenant: Tenant) -> None:
    await tenant.prepare(2, max_file_bytes=10)
    over = await prepare_attachments(
        None, [Attachment("none", b""), Attachment("long", b"x" * 11)], 100, lambda *_: None
    )
    with pytest.raises(MeshError) as refused, over.named():
        await stage_uploads(tenant, items=over.inline)
    assert refused.value.reason is Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED
    assert refused.value.facts["file"] == "long", "an empty file is accepted"

    with pytest.raises(MeshError) as refused:
        await prepare_attachments(peer_of(tenant), [Attachment("big.bin", BIG)], 0, lambda *_: None)
    assert refused.value.facts["file"] == "big.bin"


async def test_an_interrupted_download_resumes_and_completes(tenant: Tenant, tmp_path: Path) -> None:
    upload = await upload_file(peer_of(tenant), Attachment("big.bin", BIG))
    staged = await stage_uploads(tenant, ref(upload.upload_id))
    peer = CutPeer(tenant.service.peer.connection, tenant.client_token(), [3, 1])

    path = await download_file(peer, staged.set_id, staged.files[0], tmp_path)

    assert path.read_bytes() == BIG
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["big.bin"]
    assert peer.cuts == []


async def test_a_download_overwrites_only_on_request_and_discards_wrong_bytes(
    tenant: Tenant, tmp_path: Path
) -> None:
    staged = await tenant.stage(text("a.txt", "right"))
    (there := tmp_path / "a.txt").write_text("mine")
    peer, (file,) = peer_of(tenant), staged.files

    with pytest.raises(FileExistsError):
        await download_file(peer, staged.set_id, file, tmp_path)
    assert there.read_text() == "mine"
    await download_file(peer, staged.set_id, file, tmp_path, overwrite=True)
    assert there.read_text() == "right"

    tenant.overwrite(file.sha256, b"wrong")
    with pytest.raises(MeshError) as refused:
        await download_file(peer, staged.set_id, file, tmp_path, overwrite=True)
    assert refused.value.reason is Reason.STORED_HASH_DIFFERS
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a.txt", "right")]


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/b", "..", "."])
async def test_a_name_outside_the_directory_is_not_written(tenant: Tenant, tmp_path: Path, name: str) -> None:
    staged = await tenant.stage(text("a", "x"))
    (file,) = staged.files
    file.name = name

    with pytest.raises(MeshError) as refused:
        await download_file(peer_of(tenant), staged.set_id, file, tmp_path)

    assert refused.value.reason is Reason.ATTACHMENTS_INVALID_NAME
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def command(tenant: Tenant, tmp_path: Path) -> Any:
    """Run a command for the tenant on the real service."""
    (data := tmp_path / "data").mkdir()
    targets = {"session": "127.0.0.1:1", "attachment-blob": tenant.service.target}
    write_mesh_file(data, tenant.service.keys, targets)

    async def invoked(*arguments: str) -> Any:
        given = ("--data", str(data), "--tenant", tenant.tenant_id, "attachments", *arguments)
        # The worker of the service carries the operations that the command starts.
        carrying = asyncio.create_task(tenant.service.jobs.run_jobs_forever())
        try:
            return await asyncio.to_thread(invoke, *given)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

    return invoked


async def test_sets_are_listed_shown_and_downloaded(tenant: Tenant, command: Any, tmp_path: Path) -> None:
    session_id = new_id(IdKind.SESSION)
    staged = await tenant.stage(text("a.txt", "A"), text("b.txt", "BB"), session_id=session_id)
    await tenant.stage(text("c.txt", "C"))

    listed = await command("list", "--session", session_id, "--json")
    shown = await command("show", staged.set_id)
    to = tmp_path / "to"
    one = await command("get", staged.set_id, "b.txt", "--to", str(to), "--json")
    taken = await command("get", staged.set_id, "--to", str(to))
    forced = await command("get", staged.set_id, "--to", str(to), "--force")

    assert [found["set_id"] for found in json.loads(listed.stdout)["sets"]] == [staged.set_id]
    assert shown.exit_code == 0
    assert staged.files[1].sha256 in shown.stdout
    assert "b.txt" in shown.stdout
    assert json.loads(one.stdout)["files"][0]["path"] == str(to / "b.txt")
    assert taken.exit_code == 1
    assert taken.stderr == "error: ALREADY_EXISTS: b.txt is there already; --force overwrites it\n"
    assert (forced.exit_code, forced.stderr) == (0, "")
    assert {path.name: path.read_text() for path in to.iterdir()} == {"a.txt": "A", "b.txt": "BB"}
    assert (await command("list")).stdout.count("STAGED") == 2
    missing = await command("get", staged.set_id, "nothing", "--to", str(to))
    assert missing.exit_code == 1
    assert "NOT_FOUND" in missing.stderr


async def test_a_released_set_and_an_impossible_directory_are_reported(
    tenant: Tenant, command: Any, tmp_path: Path
) -> None:
    staged = await tenant.stage(text("a.txt", "A"))
    nowhere = await command("get", staged.set_id, "--to", str(tmp_path / "no" / "where"), "--json")
    await tenant.release(staged.set_id)
    whole = await command("get", staged.set_id, "--to", str(tmp_path / "to"))
    one = await command("get", staged.set_id, "a.txt", "--to", str(tmp_path / "to"))
    document = await command("get", staged.set_id, "--json")

    assert (nowhere.exit_code, json.loads(nowhere.stdout)["error"]["reason"]) == (1, "INVALID_REQUEST")
    for told in (whole, one):
        assert (told.exit_code, told.stdout) == (1, "")
        assert (
            f"ATTACHMENT_SET_STATE: attachment set {staged.set_id} is released and its files are gone"
            in told.stderr
        )
    assert (document.exit_code, json.loads(document.stdout)["error"]["facts"]["state"]) == (1, "RELEASED")
    assert not (tmp_path / "to").exists()


async def test_gc_reports_garbage_and_lost_objects(tenant: Tenant, command: Any) -> None:
    staged = await tenant.stage(text("a.txt", "A"))
    tenant.put(key_of_hash("0" * 64), b"x")

    dry = await command("gc", "--dry-run", "--json")
    assert dry.exit_code == 0
    assert json.loads(dry.stdout)["counts"]["seen_object_count"] == "2"
    tenant.lose(staged.files[0].sha256)
    real = await command("gc")

    assert real.exit_code == 1
    lines = {line.strip() for line in real.stdout.splitlines()}
    assert "1      rows whose object is missing: left as they are" in lines


async def test_a_url_is_the_only_output(tenant: Tenant, command: Any) -> None:
    staged = await tenant.stage(text("a.txt", "A"))

    made = await command("url", staged.set_id, "a.txt")

    assert made.stdout.startswith(f"http://{tenant.service.settings.s3_endpoint}/{tenant.bucket}/")
    assert made.stdout.count("\n") == 1
    assert (await get_set(peer_of(tenant), staged.set_id)).files[0].name == "a.txt"
