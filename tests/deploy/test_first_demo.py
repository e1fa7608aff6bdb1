"""`make demo` on a new clone: progress while it installs, and then one screen.

The set-up is the real one of the Makefile. Python, pip and the command are stand-ins, and this pip
goes on only when the test has read what was shown of it.
"""

import asyncio
import os
import pty
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.deploy.rendering import ROOT

PACKAGE_COUNT = 60
SCREEN = "The job is done\nsee it in the console\n"

PYTHON = r"""#!/bin/bash
case "$*" in
-m\ venv*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp spawnmesh "$3/bin" ;;
*install*-r\ constraints.txt)
    number=0
    while IFS== read -r package _; do
        echo "Collecting $package==1.0"
        number=$((number + 1))
        [ $number -ne 30 ] || read -r _ < go
    done < constraints.txt
    echo "Installing collected packages: all of them" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "constraints.txt").write_text("".join(f"p{n}==1.0\n" for n in range(PACKAGE_COUNT)))
    (tmp_path / "libs" / "one").mkdir(parents=True)
    (tmp_path / "libs" / "one" / "pyproject.toml").touch()
    os.mkfifo(tmp_path / "go")
    for name, script in (("python", PYTHON), ("spawnmesh", f"#!/bin/bash\nprintf '{SCREEN}'\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@asynccontextmanager
async def make_demo(clone: Path, *, in_terminal: bool) -> AsyncIterator[asyncio.StreamReader]:
    """Run `make demo` and yield its output."""
    ours, its = pty.openpty() if in_terminal else os.pipe()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    process = await asyncio.create_subprocess_exec(
        *("make", "--no-print-directory", f"PYTHON={clone / 'python'}", "demo"),
        cwd=clone,
        env={"PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
    )
    try:
        yield reader
        assert await process.wait() == 0
    finally:
        pipe.close()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # Also the stand-in that waits for the test.
            await process.wait()


async def rest_of(output: asyncio.StreamReader) -> str:
    """Return what follows. The end of a terminal is an error of its file."""
    read = b""
    try:
        while piece := await output.read(4096):
            read += piece
    except OSError:
        pass
    return read.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("in_terminal", [False, True], ids=["pipe", "terminal"])
async def test_progress_is_shown_while_packages_are_installed_and_one_screen_at_the_end(
    clone: Path, in_terminal: bool
) -> None:
    async with make_demo(clone, in_terminal=in_terminal) as output:
        first = (await output.readuntil(b" of 60: p24==1.0")).decode()
        assert "setting up .venv (once; about half a minute)" in first
        assert "downloading  25" in first
        (clone / "go").write_text("\n")
        rest = await rest_of(output)
    assert ("\r\033[K" in first) == in_terminal
    shown, found, after = rest.partition(SCREEN)
    assert (found, after) == (SCREEN, "")
    assert shown.index(" of 60: p49==1.0") < shown.index("installing 60 packages")
    assert shown.index("installing 60 packages") < shown.index("installing the 1 packages of this checkout")
    # A terminal shows it in one line; a file has a line for every 25th package.
    assert shown.count("downloading") == (PACKAGE_COUNT - 25 if in_terminal else 1)
    assert shown.count("\n") == (2 if in_terminal else 4)


async def test_a_second_demo_shows_the_screen_alone(clone: Path) -> None:
    (clone / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(clone / "spawnmesh", clone / ".venv" / "bin")
    (clone / ".venv" / ".mesh").touch()
    async with make_demo(clone, in_terminal=False) as output:
        assert await rest_of(output) == SCREEN
