"""`spawnmesh transcript export --out`: the file appears complete, or the old one stays."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.transcript.v1 import archive_service_pb2 as rpc
from spawnmesh.transcript.v1.archive_service_pb2_grpc import (
    ArchiveServiceServicer,
    add_ArchiveServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import SESSION_ID, invoke, served, unset, write_mesh_file

__all__ = ["unset"]

FIRST, REST = b'{"type":"session"}\n', b'{"type":"message"}\n'


@dataclass
class FakeArchive(ArchiveServiceServicer):
    """Export two lines. `refusal` replaces the first; `hold` makes the second wait for ever."""

    refusal: MeshError | None = None
    hold: bool = False
    calls: int = 0
    first_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def ExportTranscript(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        if self.refusal is not None:
            raise self.refusal
        yield rpc.ExportTranscriptResponse(data=FIRST, read_seq=1)
        if self.hold:
            self.first_sent.set()
            await asyncio.Event().wait()
        yield rpc.ExportTranscriptResponse(data=REST, read_seq=2)


@dataclass
class Exporter:
    """Run the command against the archive."""

    archive: FakeArchive
    data: Path
    to: Path

    async def run(self, *options: str, out: str = "out.jsonl") -> Any:
        return await asyncio.to_thread(invoke, *self.arguments(out), *options)

    def arguments(self, out: str = "out.jsonl") -> list[str]:
        return ["--data", str(self.data), "transcript", "export", SESSION_ID, "--out", str(self.to / out)]

    async def signalled(self, number: signal.Signals) -> int:
        """Send the signal to the installed command after its first line; return its exit code."""
        program = str(Path(sys.executable).with_name("spawnmesh"))
        self.archive.hold, self.archive.first_sent = True, asyncio.Event()
        child = await asyncio.create_subprocess_exec(
            program, *self.arguments(), env={}, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            await self.archive.first_sent.wait()
            child.send_signal(number)
            _, errors = await child.communicate()
        assert b"Traceback" not in errors
        self.archive.hold = False
        assert child.returncode is not None
        return child.returncode

    def found(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.to.iterdir()}


@pytest.fixture
async def exporter(keys: Path, tmp_path: Path) -> AsyncIterator[Exporter]:
    archive = FakeArchive()
    (to := tmp_path / "to").mkdir()

    async with served(
        "transcript", keys, lambda server: add_ArchiveServiceServicer_to_server(archive, server)
    ) as at:
        write_mesh_file(tmp_path, keys, {"session": "127.0.0.1:1", "transcript": at})
        yield Exporter(archive, tmp_path, to)


async def test_a_file_is_complete_and_private(exporter: Exporter) -> None:
    result = await exporter.run("--json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"session_id": SESSION_ID, "bytes": len(FIRST + REST)}
    assert exporter.found() == {"out.jsonl": FIRST + REST}
    assert (exporter.to / "out.jsonl").stat().st_mode & 0o777 == 0o600


async def test_what_is_there_is_not_touched_and_nothing_is_asked(exporter: Exporter) -> None:
    (exporter.to / "out.jsonl").write_text("mine")

    told, document = await exporter.run(), await exporter.run("--json")

    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr == "error: ALREADY_EXISTS: out.jsonl is there already; --force overwrites it\n"
    assert (document.exit_code, json.loads(document.stdout)["error"]["reason"]) == (1, "ALREADY_EXISTS")
    assert (exporter.found(), exporter.archive.calls) == ({"out.jsonl": b"mine"}, 0)
    assert (await exporter.run("--force")).exit_code == 0
    assert exporter.found() == {"out.jsonl": FIRST + REST}


@pytest.mark.parametrize(
    "refusal", [not_found("transcript", SESSION_ID), MeshError(Reason.CALLER_NOT_ALLOWED, "not yours")]
)
async def test_a_refusal_leaves_what_was_there(exporter: Exporter, refusal: MeshError) -> None:
    exporter.archive.refusal = refusal
    (exporter.to / "out.jsonl").write_text("mine")

    result = await exporter.run("--force")

    assert (result.exit_code, refusal.reason in result.stderr) == (1, True)
    assert exporter.found() == {"out.jsonl": b"mine"}


async def test_an_interrupted_command_removes_its_part_and_a_killed_ones_part_is_removed_by_the_next(
    exporter: Exporter,
) -> None:
    assert await exporter.signalled(signal.SIGINT) == 130
    assert exporter.found() == {}
    assert await exporter.signalled(signal.SIGTERM) == 143
    assert exporter.found() == {}
    assert await exporter.signalled(signal.SIGKILL) == -signal.SIGKILL
    (left,) = exporter.found()
    assert (left.startswith("."), left.endswith(".part")) == (True, True)

    assert (await exporter.run()).exit_code == 0
    assert exporter.found() == {"out.jsonl": FIRST + REST}


async def test_an_unwritable_path_is_reported(exporter: Exporter) -> None:
    told = await exporter.run(out="missing/out.jsonl")
    document = await exporter.run("--json", out="missing/out.jsonl")
    os.mkfifo(exporter.to / "pipe")
    no_file = await exporter.run("--force", out="pipe")

    place = exporter.to / "missing" / "out.jsonl"
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr == f"error: INVALID_REQUEST: {place} cannot be written: No such file or directory\n"
    assert json.loads(document.stdout)["error"]["reason"] == "INVALID_REQUEST"
    assert (no_file.exit_code, "pipe is there and is no file" in no_file.stderr) == (1, True)
