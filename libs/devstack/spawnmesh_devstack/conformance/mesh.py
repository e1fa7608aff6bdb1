"""Access to a running mesh with the key of the session service: as that service, and as runs for
which it signs.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry import trace
from spawnmesh_client.settings import ClientSettings
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import load_settings
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import SERVICES

_RUN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class RunOfReplay:
    """A run without a runner, in a session that the session service does not know."""

    tenant_id: str
    session_id: str
    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MeshAccess:
    """All services of a mesh, by kebab id. Make calls inside `as_session`, `as_run` or
    `as_client`.
    """

    peers: Mapping[str, Peer]
    minter: TokenMinter
    clients: TokenMinter

    @contextmanager
    def as_session(self, tenant_id: str) -> Iterator[None]:
        """Make the calls in the block as the session service, for the tenant."""
        with impersonate(tenant_id):
            yield

    @contextmanager
    def as_run(self, run: RunOfReplay) -> Iterator[None]:
        """Make the calls in the block as the run."""
        token = self.minter.run_token(run.tenant_id, run.session_id, run.run_id, run.epoch, _RUN_SECONDS)
        with use_token(token):
            yield

    @contextmanager
    def as_client(self, tenant_id: str) -> Iterator[None]:
        """Make the calls in the block as a client of the tenant."""
        with use_token(self.clients.client_token(tenant_id, "conformance", _RUN_SECONDS)):
            yield


def new_run(tenant_id: str) -> RunOfReplay:
    """Return a run with new ids."""
    return RunOfReplay(tenant_id, new_id(IdKind.SESSION), new_id(IdKind.RUN), epoch=1)


def find_endpoints(data_dir: Path) -> tuple[Mapping[str, str], Path]:
    """Return each service's target and the directory of keys, from the `mesh.json` of a running
    mesh. Raises StackError.
    """
    file = data_dir / "mesh.json"
    try:
        found = json.loads(file.read_bytes())
        targets = {name: str(found["targets"][name]) for name in SERVICES}
        return targets, data_dir / found["keys"]
    except OSError:
        raise StackError(f"no mesh is running on {data_dir}") from None
    except (ValueError, KeyError, TypeError):
        raise StackError(f"{file} does not say where the services of a mesh are") from None


@asynccontextmanager
async def open_mesh_access(targets: Mapping[str, str], keys: Path) -> AsyncIterator[MeshAccess]:
    """Open channels to the targets for the block. Raises StackError if the needed keys are
    missing.
    """
    settings = load_settings(ClientSettings)
    try:
        minter = TokenMinter("session", keys / "session.pem")
        clients = TokenMinter("client", keys / "client.pem")
    except (OSError, ValueError, TypeError):
        raise StackError(
            "the keys of that mesh cannot be read; the replay acts as its session service and its clients"
        ) from None
    process = Process("conformance", settings, minter, verifier=None, tracer=trace.get_tracer("spawnmesh"))
    async with AsyncExitStack() as exits:
        peers = {
            name: await exits.enter_async_context(open_peer(process, name, target))
            for name, target in targets.items()
        }
        yield MeshAccess(peers, minter, clients)
