"""From a package in an empty folder to the streamed answer of a mesh, in fewer than 15 lines.

The programs are those of the README and of the TypeScript client. The page about HTTP, whose test
is in `test_http_howto.py`, does the same with curl.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.new_tenant import new_tenant
from tests.support.npm import install_packages
from tests.support.typescript import build_package
from tests.support.wheels import empty_environment, install_module, packed_again, pip

(PYTHON,) = typed("README.md", "python")
(TYPESCRIPT,) = typed("clients/typescript/README.md", "ts")
SHA256_OF_HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
SHA256_OF_REPORT = "45fe5aad8cd98e06e723f0890c5093c65dcfbd31a98403cccf5d993d16ce4b6f"
THIRD_PARTY = ("grpcio", "protobuf", "googleapis-common-protos", "typing-extensions")
pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty folder, and remove it: the packages in it are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


async def printed(stack: Stack, gateway: str, folder: Path, *command: str | Path) -> str:
    """Return what a program prints that knows the one address and a token of the mesh alone."""
    env = {
        "PATH": os.environ["PATH"],
        "SPAWNMESH_URL": f"http://{gateway}",
        "SPAWNMESH_TOKEN": stack.client_token(await new_tenant(stack)),
    }
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    return answer.decode()


def lines_of_code(program: str) -> int:
    """Return the number of lines that are not empty."""
    return len([line for line in program.splitlines() if line.strip()])


def installed_client(folder: Path) -> Path:
    """Install the wheels of the client in an empty environment; return its Python.

    Nothing is downloaded: the packages of others are those of this environment.
    """
    dist, others = folder / "dist", folder / "others"
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", dist, *install_module().closure("client"))
    packed_again(THIRD_PARTY, others)
    python = empty_environment(sys.executable, folder / "venv")
    pip(
        "--python",
        python,
        "install",
        "--no-index",
        "--no-compile",
        "--find-links",
        others,
        *dist.glob("*.whl"),
    )
    return python


async def test_python_program_streams_an_answer(stack: Stack, gateway: str, folder: Path) -> None:
    assert lines_of_code(PYTHON) < 15
    python = await asyncio.to_thread(installed_client, folder)
    (folder / "program.py").write_text(PYTHON)
    assert SHA256_OF_HELLO in await printed(stack, gateway, folder, python, "program.py")


async def test_typescript_program_streams_an_answer(stack: Stack, gateway: str, folder: Path) -> None:
    assert lines_of_code(TYPESCRIPT) < 15
    build, user = folder / "build", folder / "user"
    build.mkdir()
    user.mkdir()
    package = await asyncio.to_thread(build_package, build)
    await asyncio.to_thread(install_packages, user, package.packed)
    (user / "program.mjs").write_text(TYPESCRIPT)
    assert SHA256_OF_REPORT in await printed(stack, gateway, user, "node", "program.mjs")
