"""The mesh that `spawnmesh up` runs on this machine, as another command finds it."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError
from spawnmesh_command.endpoints import MESH_FILE
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_devstack.health import until_serving
from spawnmesh_devstack.members import Member
from spawnmesh_devstack.mesh_file import is_used
from spawnmesh_devstack.processes import Command, start_process
from spawnmesh_devstack.watchdog import Watchdog

_TOKEN_SECONDS = 12 * 3600.0
_STOP_SECONDS = 2.0


class _FoundMeshFile(BaseModel):
    targets: dict[str, str]
    keys: Path
    traces: Path
    otlp: str
    console: str | None


@dataclass(frozen=True)
class MeshOfUp:
    """The mesh. `start` adds a process to it that ends with the block of `open_running_mesh`."""

    data_dir: Path
    targets: Mapping[str, str]
    keys: Path
    traces_file: Path
    otlp_endpoint: str
    console: str | None
    _exits: AsyncExitStack = field(repr=False)
    _watchdog: Watchdog = field(repr=False)
    _logs: Path = field(repr=False)

    def admin_token(self) -> str:
        """Return a token for an operator, valid for twelve hours."""
        return self._minter().admin_token("devstack", _TOKEN_SECONDS)

    def client_token(self, tenant_id: str) -> str:
        """Return a token for a client of the tenant, valid for twelve hours."""
        return self._minter().client_token(tenant_id, "devstack", _TOKEN_SECONDS)

    async def start(self, *several: Member) -> None:
        """Start processes that serve gRPC, and return when they do. Raises StartFailed."""
        for one in several:
            log_file = self._logs / f"{one.name}.log"
            command = Command(one.name, one.argv, log_file, env=one.env, working_directory=self._logs)
            process = start_process(command, self._watchdog)
            self._exits.push_async_callback(process.stop, _STOP_SECONDS)
            assert one.port is not None
            await until_serving(process, one.port)

    def _minter(self) -> TokenMinter:
        return TokenMinter("client", self.keys / "client.pem")


@asynccontextmanager
async def open_running_mesh(data_dir: Path) -> AsyncIterator[MeshOfUp | None]:
    """Yield the mesh that runs on the directory; None if none does."""
    found = _found(data_dir)
    if found is None:
        yield None
        return
    async with AsyncExitStack() as exits:
        logs = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="spawnmesh-beside-")))
        watchdog = exits.enter_context(Watchdog())
        yield MeshOfUp(
            data_dir,
            found.targets,
            data_dir / found.keys,
            data_dir / found.traces,
            found.otlp,
            found.console,
            exits,
            watchdog,
            logs,
        )


def _found(data_dir: Path) -> _FoundMeshFile | None:
    if not is_used(data_dir):
        return None
    try:
        return _FoundMeshFile.model_validate_json((data_dir / MESH_FILE).read_bytes())
    except (OSError, ValidationError):  # It starts or stops now.
        return None
