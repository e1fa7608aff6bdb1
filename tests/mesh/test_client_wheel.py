"""The Python client from its wheel, in an environment that has nothing else."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.stack import Stack

from tests.support.wheels import empty_environment, install_module, pip

OURS = {"spawnmesh-client", "spawnmesh-calls", "spawnmesh-core", "spawnmesh-protos"}
# The last one is a dependency of grpcio.
OTHERS = {"grpcio", "protobuf", "googleapis-common-protos", "typing-extensions"}
PROGRAM = """
import asyncio, os
from spawnmesh_client import Attachment, FailedPrecondition, connect

async def main():
    async with connect(targets={"session": os.environ["SESSION"]}) as mesh:
        session = await mesh.spawn("Say hello.", attachments=[Attachment("a.txt", b"hello")])
        print((await session.result(timeout=60)).text)
        try:
            await mesh.agents.get("unknown")
        except FailedPrecondition as error:
            print(error.reason)
asyncio.run(main())
"""


VERIFIES = """
from spawnmesh_client.webhooks import SignatureRefused, verify

try:
    verify("whsec_" + "MDAw" * 8, {}, b"{}")
except (ImportError, SignatureRefused) as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheels of the client and of what it needs here; return their folder."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, *install_module().closure("client"))
    return folder


def interpreter(version: str) -> str:
    """Return a Python of this version, which may be one of pyenv. Skips the test if there is none."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (shutil.which(name), *map(str, pyenv.glob(f"versions/{version}*/bin/{name}"))):
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"there is no {name} here")


def installed_client(version: str, wheels: Path, folder: Path) -> Path:
    """Install the client in an empty environment of the Python version; return its Python."""
    versions = folder / "versions.txt"
    versions.write_text("".join(f"{pin.split()[0]}\n" for pin in install_module().pins().values()))
    python = empty_environment(interpreter(version), folder / "venv")
    install(python, "spawnmesh-client", wheels, versions)
    return python


def install(python: Path, requirement: str, wheels: Path, versions: Path) -> None:
    pip(
        "--python", python, "install", "--only-binary", ":all:", "--no-compile", "-c", versions,
        "--find-links", wheels, requirement,
    )  # fmt: skip


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
async def test_client_wheel_brings_few_packages_and_spawns_a_session(
    stack: Stack, wheels: Path, tmp_path: Path, version: str
) -> None:
    python = await asyncio.to_thread(installed_client, version, wheels, tmp_path)
    listed = json.loads(await asyncio.to_thread(pip, "--python", python, "list", "--format", "json"))
    assert {one["name"].lower().replace("_", "-") for one in listed} == OURS | OTHERS
    assert len(PROGRAM.strip().splitlines()) <= 15

    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    env = {
        "PATH": os.environ["PATH"],
        "SESSION": stack.targets["session"],
        "SPAWNMESH_TOKEN": stack.client_token(tenant),
    }
    child = await asyncio.create_subprocess_exec(
        python, "-c", PROGRAM, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    answer, errors = await child.communicate()
    assert (child.returncode, errors) == (0, b"")
    *text, reason = answer.decode().splitlines()
    assert text, "no answer of the session"
    assert reason == "UNKNOWN_AGENT"


def test_webhooks_are_verified_by_an_extra(wheels: Path, tmp_path: Path) -> None:
    python = installed_client("3.11", wheels, tmp_path)

    def printed() -> str:
        run = subprocess.run([python, "-c", VERIFIES], capture_output=True, text=True, check=True)
        return run.stdout.strip()

    command = "pip install 'spawnmesh-client[webhooks]'"
    assert printed() == f"ImportError: to verify webhooks, install the extra: {command}"
    install(python, "spawnmesh-client[webhooks]", wheels, tmp_path / "versions.txt")
    assert printed() == "SignatureRefused: the request is not signed"
