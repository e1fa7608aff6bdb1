"""The replica that is killed, paused and failed, from the side of the test."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import psutil
import psycopg
from spawnmesh_devstack.members import base_environment, python_module
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.processes import ChildProcess, Command, start_process
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process as start_this_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.chaos.failpoints import Failpoints, Fault
from tests.support.session.harness import Mesh

ROOT = Path(__file__).parents[3]
_RECONNECT = [
    (f"grpc.{name}_reconnect_backoff_ms", ms) for name, ms in (("initial", 20), ("max", 20), ("min", 5_000))
]
# A channel retries unanswered calls by itself; here the test decides which replica is called again.
_ONE_TRY: list[tuple[str, int]] = [
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    *_RECONNECT,
]


@dataclass
class Victim:
    """A replica of the session service, replaced after each kill at the same address."""

    folder: Path
    process: ChildProcess
    peer: Peer
    superuser_dsn: str

    @property
    def failpoints(self) -> Failpoints:
        return Failpoints(self.folder)

    def mesh(self, mesh: Mesh) -> Mesh:
        """Calls this replica in the name of the same tenant."""
        return Mesh(self.peer, mesh.keys, mesh.settings, mesh.tenant)

    async def serving(self) -> int:
        """The id of the process that serves; waits for it where the last one was killed."""
        async with asyncio.timeout(60):
            while True:
                assert self.process.returncode is None, self.process.tail()
                pid_file = self.folder / "serving"
                pid = int(pid_file.read_text()) if pid_file.exists() else 0
                if pid and psutil.pid_exists(pid) and _status(pid) != psutil.STATUS_ZOMBIE:
                    await self.peer.channel.channel_ready()
                    return pid
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        """Wait until it serves, and works on no spawn and no undo of an earlier one."""
        await self.serving()
        async with asyncio.timeout(60):
            while self.failpoints.in_progress():
                await asyncio.sleep(0.005)

    @contextmanager
    def planned(self, step: str, fault: Fault) -> Iterator[Failpoints]:
        """The fault happens at the step while the block lasts."""
        self.failpoints.plan(step, fault)
        yield self.failpoints
        reached = self.failpoints.steps()
        assert not step or step in reached, f"{step!r} was not reached, but {reached}"
        self.failpoints.plan()

    async def stopped(self, pid: int) -> None:
        """Wait until the process has stopped, and end its transactions as PostgreSQL would."""
        async with asyncio.timeout(60):
            while _status(pid) != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.005)
        backends = self.failpoints.reached()[-1].backends
        async with await psycopg.AsyncConnection.connect(self.superuser_dsn, autocommit=True) as link:
            await link.execute(
                "select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", (backends,)
            )

    def resume(self, pid: int) -> None:
        """SIGCONT."""
        psutil.Process(pid).resume()


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


@asynccontextmanager
async def open_victim(
    folder: Path, mesh: Mesh, targets: dict[str, str], watchdog: Watchdog, superuser_dsn: str, **more: str
) -> AsyncIterator[Victim]:
    """Open a replica beside `mesh` with the same database, keys and services."""
    (port,) = free_ports(1)
    variables = {
        "LISTEN": f"{LOOPBACK}:{port}",
        "JWKS_FILE": str(mesh.settings.jwks_file),
        "SIGNING_KEY_FILE": str(mesh.settings.signing_key_file),
        "LOG_LEVEL": "error",
        "DATABASE_URL": mesh.settings.database_url,
        "LEASE_TTL_SECONDS": "60",
        **{f"{name.replace('-', '_').upper()}_TARGET": target for name, target in targets.items()},
        **more,
    }
    env = {**base_environment(), **{f"SESSION_{name}": value for name, value in variables.items()}}
    argv = python_module("tests.support.chaos.replica", str(folder))
    command = Command(f"session {secrets.token_hex(2)}", argv, folder / "log", env, working_directory=ROOT)
    Failpoints(folder).plan()
    process = start_process(command, watchdog)
    channel = grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=_ONE_TRY)
    try:
        async with start_this_process("test", ProcessSettings(log_level="error")) as this:
            victim = Victim(folder, process, Peer("session", channel, this), superuser_dsn)
            await victim.serving()
            yield victim
    finally:
        await channel.close(None)
        await process.kill()
