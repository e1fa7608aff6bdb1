"""A runner whose disk is full hands its runs back, and claims none until there is room."""

import errno
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runner.clients.mcp import stdio as mcp_stdio

from tests.support.disks import tiny_disk
from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.mcp_fixtures import config, stdio
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
ROOM = {"min_free_bytes": 32 * 1024}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    with tiny_disk(tmp_path / "disk", "256k") as path:
        yield path


def fill(disk: Path) -> Path:
    """Write until the disk is full; return the file that fills it."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


async def check(port: int, name: str) -> int:
    """Return the status of the check; SERVICE_UNKNOWN before the runner has looked for the first time."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        try:
            return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)).status)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_ClaimRuns__no_run_is_claimed_while_the_disk_is_full(
    mesh: ScriptedMesh, keys: Path, disk: Path
) -> None:
    (port,) = free_ports(1)
    filler = fill(disk)
    mesh.answers.append(saying("Done."))
    mesh.queue_run()
    async with running_runner(mesh, keys, disk, health_listen=f"127.0.0.1:{port}", **ROOM):

        async def disk_is(status: int) -> bool:
            return await check(port, "workspace-disk") == status

        await eventually(lambda: disk_is(NOT_SERVING))
        assert mesh.claim_sizes == []
        filler.unlink()
        await eventually(lambda: mesh.finalized)
        assert await disk_is(SERVING)


async def test_ClaimRuns__a_runner_with_room_takes_what_one_with_a_full_disk_does_not_claim(
    mesh: ScriptedMesh, keys: Path, disk: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    fill(disk)
    async with (
        running_runner(mesh, keys, disk, health_listen=f"127.0.0.1:{port}", runner_id="full", **ROOM),
        running_runner(mesh, keys, tmp_path / "roomy", runner_id="roomy", **ROOM),
    ):

        async def disk_is_full() -> bool:
            return await check(port, "workspace-disk") == NOT_SERVING

        await eventually(disk_is_full)
        for number in range(1, 4):
            mesh.answers.append(saying("Done."))
            mesh.finalized = None
            mesh.queue_run(epoch=number)
            await eventually(lambda: mesh.finalized)
    assert mesh.delays == []
    assert mesh.claimed_by == ["roomy"] * 3


async def test_ReleaseRun__files_that_do_not_fit_delay_the_run(
    mesh: ScriptedMesh, keys: Path, disk: Path
) -> None:
    mesh.files = {"a.bin": b"x" * 400_000}
    mesh.queue_run()
    async with running_runner(mesh, keys, disk, **ROOM):
        await eventually(lambda: mesh.delays)
        await eventually(lambda: mesh.released_claims)
    [delay] = mesh.delays
    assert (delay.reason, mesh.failed) == (reason_pb2.REASON_RUNNER_DISK_FULL, None)
    assert delay.message == "the disk of the runner is full; another runner takes the run"
    assert list(disk.iterdir()) == []


async def test_ReleaseRun__a_small_file_that_does_not_fit_delays_the_run(
    mesh: ScriptedMesh, keys: Path, disk: Path
) -> None:
    """It fits into the buffer of the file that it passes through, whose end fails to write it."""
    mesh.files = {"a.txt": b"x" * 100}
    mesh.on_read_file = lambda: fill(disk)
    mesh.queue_run()
    async with running_runner(mesh, keys, disk, **ROOM):
        await eventually(lambda: mesh.delays or mesh.failed)
    assert mesh.failed is None
    assert mesh.delays[0].reason == reason_pb2.REASON_RUNNER_DISK_FULL


async def test_ReleaseRun__a_tool_that_meets_a_full_disk_delays_the_run_and_is_called_again(
    mesh: ScriptedMesh, keys: Path, disk: Path
) -> None:
    fillers: list[Path] = []
    mesh.on_generate = lambda: fillers.append(fill(disk)) if not fillers else None
    write = ("c1", "write_file", '{"path": "a.txt", "content": "' + "x" * 8192 + '"}')
    mesh.answers.extend([calling(write), saying("Written.")])
    mesh.queue_run(tools=("write_file",))
    async with running_runner(mesh, keys, disk, **ROOM):
        await eventually(lambda: mesh.delays)
        assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
        mesh.queue_run(epoch=2, tools=("write_file",))
        fillers[0].unlink()
        await eventually(lambda: mesh.finalized)
    assert mesh.failed is None
    [delay] = mesh.delays
    assert delay.reason == reason_pb2.REASON_RUNNER_DISK_FULL
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    assert (result.tool_call_id, result.is_error) == ("c1", False)


async def test_ReleaseRun__no_room_to_start_an_mcp_server_hands_the_run_back(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mcp_stdio, "_make_home", full)
    mesh.queue_run(mcp_servers=("weather",))
    async with running_runner(
        mesh, keys, tmp_path / "work", mcp_config_file=config(tmp_path, weather=stdio())
    ):
        await eventually(lambda: mesh.delays or mesh.failed or mesh.finalized)
    assert ([delay.reason for delay in mesh.delays], mesh.prompts) == (
        [reason_pb2.REASON_RUNNER_DISK_FULL],
        [],
    )
