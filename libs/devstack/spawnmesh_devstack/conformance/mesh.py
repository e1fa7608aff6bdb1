"""Access to a running mesh.

With its signing keys, calls are made as the session service, its runs and its clients; else with
one token.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry import trace
from spawnmesh_command.settings import CommandSettings
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import load_settings
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_devstack.conformance.cases import BadCase
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
class Signers:
    """The keys of a mesh: of its session service, and for its clients."""

    session: TokenMinter
    clients: TokenMinter


@dataclass(frozen=True, slots=True)
class Deployment:
    """The addresses of the services of a mesh by kebab id, and the keys or the token for calls."""

    targets: Mapping[str, str]
    keys: Path | None = None
    token: str = ""


class _Peers(dict[str, Peer]):
    def __missing__(self, name: str) -> Peer:
        raise BadCase(f"no target of {name} was given")


@dataclass(frozen=True, slots=True)
class MeshAccess:
    """The services of a mesh, by kebab id. Make calls inside `as_session`, `as_operator`,
    `as_run` or `as_client`. If there are no `signers`, all of them use `token`.
    """

    peers: Mapping[str, Peer]
    signers: Signers | None
    token: str = ""

    @contextmanager
    def as_session(self, tenant_id: str) -> Iterator[None]:
        """Make the calls in the block as the session service, for the tenant."""
        with impersonate(tenant_id) if self.signers else use_token(self.token):
            yield

    @contextmanager
    def as_operator(self) -> Iterator[None]:
        """Make the calls in the block as an operator of the mesh."""
        token = self.signers.clients.admin_token("conformance", _RUN_SECONDS) if self.signers else self.token
        with use_token(token):
            yield

    @contextmanager
    def as_run(self, run: RunOfReplay) -> Iterator[None]:
        """Make the calls in the block as the run."""
        token = self.token
        if self.signers:
            token = self.signers.session.run_token(
                run.tenant_id, run.session_id, run.run_id, run.epoch, _RUN_SECONDS
            )
        with use_token(token):
            yield

    @contextmanager
    def as_client(self, tenant_id: str) -> Iterator[None]:
        """Make the calls in the block as a client of the tenant."""
        token = self.token
        if self.signers:
            token = self.signers.clients.client_token(tenant_id, "conformance", _RUN_SECONDS)
        with use_token(token):
            yield


def new_run(tenant_id: str) -> RunOfReplay:
    """Return a run with new ids."""
    return RunOfReplay(tenant_id, new_id(IdKind.SESSION), new_id(IdKind.RUN), epoch=1)


def find_deployment(data_dir: Path) -> Deployment:
    """Return the mesh that runs on the directory, from its `mesh.json`. Raises StackError."""
    file = data_dir / "mesh.json"
    try:
        found = json.loads(file.read_bytes())
        targets = {name: str(found["targets"][name]) for name in SERVICES}
        return Deployment(targets, data_dir / found["keys"])
    except OSError:
        raise StackError(f"no mesh is running on {data_dir}") from None
    except (ValueError, KeyError, TypeError):
        raise StackError(f"{file} does not say where the services of a mesh are") from None


@asynccontextmanager
async def open_mesh_access(deployment: Deployment) -> AsyncIterator[MeshAccess]:
    """Open channels to the services for the block. Raises StackError if the keys cannot be read."""
    signers = None if deployment.keys is None else _signers_of(deployment.keys)
    process = Process(
        "conformance",
        load_settings(CommandSettings),
        signers.session if signers else None,
        verifier=None,
        tracer=trace.get_tracer("spawnmesh"),
    )
    async with AsyncExitStack() as exits:
        peers = _Peers()
        for name, target in deployment.targets.items():
            peers[name] = await exits.enter_async_context(open_peer(process, name, target))
        yield MeshAccess(peers, signers, deployment.token)


def _signers_of(keys: Path) -> Signers:
    try:
        return Signers(
            TokenMinter("session", keys / "session.pem"), TokenMinter("client", keys / "client.pem")
        )
    except (OSError, ValueError, TypeError):
        raise StackError(
            "the keys of that mesh cannot be read; the replay acts as its session service and its clients"
        ) from None
