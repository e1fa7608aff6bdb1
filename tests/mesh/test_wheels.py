"""The whole mesh from its wheels: an empty environment, an empty directory, and no checkout."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wheels import ROOT, empty_environment, pip

PARTS = [*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an empty directory, which the account of PostgreSQL can pass, as below pytest's it cannot."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-wheels-") as folder:
        yield Path(folder)


async def typed(command: str, directory: Path) -> tuple[int | None, str]:
    """Type a command in a shell that has nothing of the mesh on its PATH."""
    process = await start(command, directory)
    assert process.stdout is not None
    printed = await process.stdout.read()
    return await process.wait(), printed.decode()


async def start(command: str, directory: Path) -> asyncio.subprocess.Process:
    """Start a command in a shell of its own, whose process group is that of a terminal."""
    env = {"PATH": os.defpath, "HOME": str(directory), "COLUMNS": "80"}
    return await asyncio.create_subprocess_exec(
        "bash", "-c", f"exec {command}", cwd=directory, env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


def installed_command(folder: Path) -> Path:
    """Install `spawnmesh` from a directory of wheels into an empty environment; return its command."""
    wheels = folder / "dist"
    made = subprocess.run(
        ["make", "--no-print-directory", "wheels", f"DIST={wheels}"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert len([*wheels.glob("*.whl")]) == len(PARTS)
    python = empty_environment(sys.executable, folder / "venv")
    pip(
        "--python", python, "install", "--only-binary", ":all:", "--no-compile",
        "--constraint", wheels / "versions.txt", "--find-links", wheels, "spawnmesh",
    )  # fmt: skip
    return python.with_name("spawnmesh")


@pytest.mark.timeout(600)
async def test_installed_mesh_does_the_demo_and_stays_up(directory: Path, tmp_path: Path) -> None:
    spawnmesh = await asyncio.to_thread(installed_command, tmp_path)

    status, printed = await typed(f"{spawnmesh} demo", directory)
    assert status == 0, printed
    assert re.search(r"^- (\d+) of \1 checks passed$", printed, re.MULTILINE)
    verbose, up = re.findall(
        r"^  (\S.*?) +# ", printed.partition("Next, in this directory:")[2], re.MULTILINE
    )
    assert verbose == f"{spawnmesh} demo --verbose"

    process = await start(up, directory)
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(240):
        while "Ctrl-C stops" not in printed:
            line = (await process.stdout.readline()).decode()
            assert line, printed
            printed += line
    first_call = printed.partition("in this directory:\n")[2].splitlines()[0]
    assert first_call.startswith(f"{spawnmesh} spawn ")
    status, answer = await typed(first_call, directory)
    assert status == 0, answer
    assert "scripted model" in answer
    process.send_signal(signal.SIGINT)
    rest = await process.stdout.read()
    assert await process.wait() == 0, rest
