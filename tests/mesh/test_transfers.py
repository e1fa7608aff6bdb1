"""Transfers of large files resume where they were cut, over the crash of the service that has them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256, shake_256
from io import BytesIO
from pathlib import Path
from signal import SIGKILL
from uuid import uuid4

import psutil
import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client import Mesh, connect
from spawnmesh_client.attachment_uploads import CHUNK_BYTES
from spawnmesh_client.transcript_files import export_file, import_file
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.family import family, signal_all
from spawnmesh_devstack.stack import Stack

pytestmark = pytest.mark.timeout(180)
LINES = 6_000
FILE_BYTES = 24_000_000  # Uploads are durable in parts of 5 MiB.


class Crash:
    """The crash of a service, at the first progress beyond a number of bytes; it starts again then.

    `seen` are the bytes that every later progress begins with, which tells a transfer that begins
    anew from one that resumes.
    """

    def __init__(self, stack: Stack, service: str, after_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = psutil.Process(stack.processes[service].pid)
        self._after_bytes = after_bytes
        self._is_down = asyncio.Event()
        self.seen: list[int] = []

    def progress(self, _name: str, done_bytes: int, _size_bytes: int) -> None:
        """Kill the service before the caller sends or reads on. Any thread may call it."""
        if self.has_happened:
            self.seen.append(done_bytes)
        elif done_bytes >= self._after_bytes:
            signal_all(family(self._process), SIGKILL)
            self._loop.call_soon_threadsafe(self._is_down.set)
            self._is_down.set()

    @property
    def has_happened(self) -> bool:
        return self._is_down.is_set()

    async def wait(self) -> None:
        await self._is_down.wait()


class Target(BytesIO):
    """A file in memory that reports the bytes which are written."""

    def __init__(self, on_progress: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._on_progress = on_progress

    def write(self, data: object) -> int:
        count = super().write(data)  # type: ignore[arg-type]
        self._on_progress("", self.tell(), 0)
        return count


@asynccontextmanager
async def crashing(stack: Stack, service: str, after_bytes: int) -> AsyncIterator[Crash]:
    """Start the service again after its crash. The block is to see the crash."""
    crash = Crash(stack, service, after_bytes)

    async def come_back() -> None:
        await crash.wait()
        await stack.restart(service)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(come_back())
        yield crash
        assert crash.has_happened, "the transfer was over before the crash"


@asynccontextmanager
async def mesh_of(stack: Stack) -> AsyncIterator[Mesh]:
    """Connect as a client of a new tenant that accepts large files."""
    tenant_id = f"t-{uuid4().hex[:12]}"
    files = AttachmentLimits(
        enabled=True, max_file_count=2, max_file_bytes=2 * FILE_BYTES, max_total_bytes=2 * FILE_BYTES
    )
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant_id, settings=TenantSettings(attachments=files))
    async with connect(targets=stack.targets, token=stack.client_token(tenant_id)) as mesh:
        yield mesh


def session_file(path: Path) -> bytes:
    """Write a session file of some megabytes."""
    header = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"}
    lines = [header]
    for number in range(1, LINES):
        content = [{"type": "text", "text": f"{number} " + "y" * 1_500}]
        parent = f"m{number - 1}" if number > 1 else None
        message = {"role": "user", "content": content, "timestamp": 1}
        lines.append({"type": "message", "id": f"m{number}", "parentId": parent, "message": message})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path.read_bytes()


async def test_import_and_export_resume_over_the_crash_of_their_service(stack: Stack, tmp_path: Path) -> None:
    data = session_file(file := tmp_path / "in.jsonl")
    session_id = new_id(IdKind.SESSION)
    async with mesh_of(stack) as mesh:
        peer = mesh.wire.service("transcript")
        async with crashing(stack, "transcript", len(data) // 2) as crash:
            done = await import_file(peer, file, session_id, crash.progress)
        assert done.durable_bytes == len(data)
        assert crash.seen[0] > 2 * CHUNK_BYTES, "the import began anew"
        async with crashing(stack, "transcript", len(data) // 4) as crash:
            target = Target(crash.progress)
            assert await export_file(peer, session_id, target) == len(data)
    assert crash.seen[0] > len(data) // 4, "the export began anew"
    assert target.getvalue() == data


async def test_upload_and_download_resume_over_the_crash_of_their_service(
    stack: Stack, tmp_path: Path
) -> None:
    data = shake_256(uuid4().bytes).digest(FILE_BYTES)
    (file := tmp_path / "large.bin").write_bytes(data)
    (out := tmp_path / "out").mkdir()
    async with mesh_of(stack) as mesh:
        async with crashing(stack, "attachment-blob", 5 * len(data) // 6) as crash:
            uploaded = await mesh.files.upload(file, on_progress=crash.progress)
        assert (uploaded.size_bytes, uploaded.sha256) == (len(data), sha256(data).hexdigest())
        assert crash.seen[0] > 2 * CHUNK_BYTES, "the upload began anew"
        session = await mesh.spawn("Wait.", attachments=[file], mode="SESSION")
        (attached,) = [one async for one in mesh.files.sets(session_id=session.session_id)]
        async with crashing(stack, "attachment-blob", len(data) // 4) as crash:
            read = await mesh.files.download(attached.set_id, file.name, out, on_progress=crash.progress)
    assert crash.seen[0] > len(data) // 4, "the download began anew"
    assert read.read_bytes() == data
