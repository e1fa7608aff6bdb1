"""Read `deploy/compose.yaml` as Docker Compose does, and run its containers as processes on loopback.

There is no Docker where the tests run. Each container gets an address of its own in 127.0.0.0/8 in
place of a network, and a folder for each volume. Its command and its environment are those of the
file, in which the names of containers, `0.0.0.0`, `127.0.0.1` and the paths of volumes are replaced
by these. An image of the mesh is the environment of the tests; PostgreSQL, SeaweedFS and Envoy are
the programs of their wheels.
"""

import asyncio
import os
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import yaml
from spawnmesh_devstack.gateway import envoy_program
from spawnmesh_devstack.postgres import Postgres, installation
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.deploy.rendering import ROOT

FILE = ROOT / "deploy" / "compose.yaml"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::-([^}]*))?\})")
_OWN_ADDRESSES = ("0.0.0.0", "127.0.0.1")
_READY_SECONDS = 180.0
_CHECK_SECONDS = 0.5
_PYTHON = ("python", "-m")
"""The entry point of an image of the mesh."""

Object = dict[str, Any]


def load(variables: Mapping[str, str]) -> Object:
    """Return the file with these variables in place of their names."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(lambda it: it[1] or variables.get(it[2], it[3] or ""), value)
        if isinstance(value, dict):
            return {name: filled(one) for name, one in value.items()}
        return [filled(one) for one in value] if isinstance(value, list) else value

    found: Object = filled(yaml.safe_load(FILE.read_text()))
    return found


def of_mesh(container: Object) -> bool:
    """Return whether the image is one of those that the Dockerfile builds."""
    return str(container["image"]).startswith("spawnmesh/")


class Machine:
    """All containers of the file, below a folder of the test."""

    def __init__(self, folder: Path, variables: Mapping[str, str], watchdog: Watchdog) -> None:
        self._folder = folder
        self._watchdog = watchdog
        self.file = load(variables)
        self.containers: dict[str, Object] = self.file["services"]
        # The test has a network of its own: others on this machine may use the same ports.
        network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.addresses = {name: f"{network}.{count + 10}" for count, name in enumerate(self.containers)}
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    def log_of(self, name: str) -> str:
        """Return what a container has printed."""
        file = self._folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def volume(self, name: str) -> Path:
        """Return the folder of a volume."""
        folder = self._folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def run(self, name: str, *arguments: str) -> str:
        """Run a container of a profile to its end, as `docker compose run --rm` does."""
        return await self._to_its_end(name, arguments)

    async def stop(self) -> None:
        """Stop all processes, in the reverse order of their start."""
        for process in reversed(self._processes.values()):
            if process.returncode is None:
                process.terminate()
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), 60)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def is_healthy(self, name: str) -> bool:
        """Run the health check of the container once."""
        kind, *command = self.containers[name]["healthcheck"]["test"]
        assert kind == "CMD"
        process = await asyncio.create_subprocess_exec(
            *self._here(name, command),
            env=self._environment(name),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await process.wait() == 0

    def _in_order(self) -> list[str]:
        """Return the names so that each comes after those that it depends on."""
        ordered: list[str] = []

        def add(name: str) -> None:
            for needed in self.containers[name].get("depends_on", {}):
                add(needed)
            if name not in ordered:
                ordered.append(name)

        for name, container in self.containers.items():
            if "profiles" not in container:
                add(name)
        return ordered

    async def _start(self, name: str) -> None:
        container = self.containers[name]
        if "healthcheck" not in container:
            assert container["restart"] == "no", f"{name} is a step"
            await self._to_its_end(name, ())
            return
        self._processes[name] = await self._spawn(name, self._command(name))
        await self._until_healthy(name)

    async def _until_healthy(self, name: str) -> None:
        async with asyncio.timeout(_READY_SECONDS):
            while not await self.is_healthy(name):
                process = self._processes.get(name)
                assert process is None or process.returncode is None, self.log_of(name)[-4000:]
                await asyncio.sleep(_CHECK_SECONDS)

    async def _to_its_end(self, name: str, arguments: tuple[str, ...]) -> str:
        process = await self._spawn(name, [*self._command(name), *arguments])
        code = await asyncio.wait_for(process.wait(), _READY_SECONDS)
        assert code == 0, f"{name}: {self.log_of(name)[-4000:]}"
        return self.log_of(name)

    async def _spawn(self, name: str, command: list[str]) -> asyncio.subprocess.Process:
        folder = self._mounts(name).get(str(self.containers[name].get("working_dir", "")), "/")
        with (self._folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                env=self._environment(name),
                cwd=folder,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )

    def _command(self, name: str) -> list[str]:
        container = self.containers[name]
        entry = container.get("entrypoint", list(_PYTHON) if of_mesh(container) else [])
        return self._here(name, [*entry, *container.get("command", [])])

    def _environment(self, name: str) -> dict[str, str]:
        given: dict[str, str] = self.containers[name].get("environment") or {}
        values = dict(zip(given, self._here(name, list(given.values())), strict=True))
        return {"PATH": os.environ["PATH"], "HOME": str(self._folder / name), **values}

    def _here(self, name: str, texts: list[str]) -> list[str]:
        """Replace the programs, the paths and the addresses of a container by those of this machine."""
        programs = {
            "python": sys.executable,
            "weed": str(Path(sys.executable).with_name("weed")),
            "envoy": str(envoy_program()),
            "pg_isready": str(installation() / "bin" / "pg_isready"),
        }
        if texts and texts[0] in programs:
            # The program is of this machine, wherever that has it.
            return [programs[texts[0]], *self._here(name, texts[1:])]
        replaced = texts
        names = "|".join(map(re.escape, sorted(self.addresses, reverse=True)))
        hosts = self.addresses | dict.fromkeys(_OWN_ADDRESSES, self.addresses[self._listening_for(name)])
        own = "|".join(map(re.escape, _OWN_ADDRESSES))
        host = re.compile(rf"(?<![\w.-])(?:(?:{names})(?=:\d)|(?:{own})(?![\w.]))")
        replaced = [host.sub(lambda found: hosts[found[0]], text) for text in replaced]
        # In one step, since the folders here have some of these paths in theirs.
        mounts = self._mounts(name)
        if mounts:
            path = re.compile(
                rf"(?<![\w/])(?:{'|'.join(map(re.escape, sorted(mounts, reverse=True)))})(?![\w.])"
            )
            replaced = [path.sub(lambda found: mounts[found[0]], text) for text in replaced]
        return replaced

    def _listening_for(self, name: str) -> str:
        """Return the container whose own addresses the command of this one names.

        A step without a network writes the configuration of the container that waits for it.
        """
        if self.containers[name].get("network_mode") != "none":
            return name
        waiting = [one for one, other in self.containers.items() if name in other.get("depends_on", {})]
        return waiting[-1]

    def _mounts(self, name: str) -> dict[str, str]:
        """Return the folder or file here of each mounted path."""
        container = self.containers[name]
        found = {
            path: str(self._made(self._folder / name / path.strip("/")))
            for path in container.get("tmpfs", ())
        }
        for volume in container.get("volumes", ()):
            source, target = volume.split(":")[:2]
            found[target] = str(self.volume(source))
            # A command may name the folder in which volumes are mounted.
            above = self._made(self._folder / name / Path(target).parent.relative_to("/"))
            if not (mounted := above / Path(target).name).is_symlink():
                mounted.symlink_to(found[target])
            if above != self._folder / name:
                found.setdefault(str(Path(target).parent), str(above))
        for config in container.get("configs", ()):
            found[config["target"]] = str(FILE.parent / self.file["configs"][config["source"]]["file"])
        return found

    @staticmethod
    def _made(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @asynccontextmanager
    async def _postgresql(self) -> AsyncIterator[None]:
        """Run PostgreSQL as the entry point of its image does: with the password of the file."""
        name = "postgresql"
        [option] = [text for text in self.containers[name]["command"] if "=" in text]
        settings = dict([option.split("=")]) | {"listen_addresses": self.addresses[name], "port": "5432"}
        data = self._folder / name / "data"
        server = Postgres(
            data, self._folder / f"{name}.log", self._watchdog, lambda _: None, settings=settings
        )
        async with server:
            password = Path(self._environment(name)["POSTGRES_PASSWORD_FILE"]).read_text()
            async with await psycopg.AsyncConnection.connect(server.superuser_dsn, autocommit=True) as admin:
                await admin.execute(f"alter role postgres password '{password}'")
                rules = data / "pg_hba.conf"
                rules.write_text("local all all trust\nhost all all 127.0.0.0/8 scram-sha-256\n")
                await admin.execute("select pg_reload_conf()")
            await self._until_healthy(name)
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have all containers running during the block."""
        async with AsyncExitStack() as stack:
            for name in self._in_order():
                if name == "postgresql":
                    await stack.enter_async_context(self._postgresql())
                    stack.push_async_callback(self.stop)  # All others end before it.
                else:
                    await self._start(name)
            yield


def programs_are_here() -> bool:
    """Return whether the programs of the health checks are on this machine."""
    return shutil.which("wget") is not None and shutil.which("bash") is not None
