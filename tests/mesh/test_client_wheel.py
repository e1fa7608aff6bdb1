"""The Python client from its wheel, in an environment that has nothing else."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any
from uuid import uuid4

from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
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


def install_module() -> Any:
    spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "docker" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pip(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed_client(folder: Path) -> Path:
    """Build the wheels of the client and of what it needs here, install it, return its Python."""
    install, wheels, environment = install_module(), folder / "wheels", folder / "venv"
    python = environment / "bin" / "python"
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *install.closure("client"))
    versions = folder / "versions.txt"
    versions.write_text("".join(f"{pin.split()[0]}\n" for pin in install.pins().values()))
    venv.create(environment, with_pip=False)
    pip(
        "--python", python, "install", "--only-binary", ":all:", "--no-compile", "-c", versions,
        "--find-links", wheels, "spawnmesh-client",
    )  # fmt: skip
    return python


async def test_client_wheel_brings_few_packages_and_spawns_a_session(stack: Stack, tmp_path: Path) -> None:
    python = await asyncio.to_thread(installed_client, tmp_path)
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
