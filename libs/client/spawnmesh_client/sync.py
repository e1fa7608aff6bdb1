"""The client for programs without asyncio: the same methods, which block.

    with connect() as mesh:
        print(mesh.run("Summarise the report.", attachments=["report.md"]).text)

The asynchronous client does the work, on an event loop in a thread of its own. Several threads may
use one mesh at once.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from spawnmesh_client import client
from spawnmesh_client.agents import Agents
from spawnmesh_client.approvals import Approvals
from spawnmesh_client.client import Mesh
from spawnmesh_client.files import Files
from spawnmesh_client.loop_thread import LoopThread
from spawnmesh_client.models import Models
from spawnmesh_client.operations import Operation, OperationFields, Operations
from spawnmesh_client.outcomes import Result
from spawnmesh_client.plugins import Plugins
from spawnmesh_client.schedules import Schedules
from spawnmesh_client.session import Session
from spawnmesh_client.settings import ConnectionSettings
from spawnmesh_client.tenants import Tenants
from spawnmesh_client.token_peer import Token
from spawnmesh_client.views import SessionFields
from spawnmesh_client.webhooks import Webhooks

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the method that waits for the result of the asynchronous one."""
    made: Callable[Concatenate[Any, P], R] = _waiting(method)
    return made


def _iterated(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Return the method that iterates over what the asynchronous one yields."""
    made: Callable[Concatenate[Any, P], Iterator[R]] = _iterating(method)
    return made


def _session(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Session]],
) -> Callable[Concatenate[Any, P], "SyncSession"]:
    """Return the blocking method of one that returns a session."""
    made: Callable[Concatenate[Any, P], SyncSession] = _waiting(method)
    return made


def _sessions(
    method: Callable[Concatenate[Any, P], AsyncIterator[Session]],
) -> Callable[Concatenate[Any, P], Iterator["SyncSession"]]:
    """Return the blocking method of one that yields sessions."""
    made: Callable[Concatenate[Any, P], Iterator[SyncSession]] = _iterating(method)
    return made


def _waiting(method: Any) -> Any:
    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return _shown(self._loop.run(method(self._inner, *arguments, **options)), self._loop)

    return call


def _iterating(method: Any) -> Any:
    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        for item in self._loop.iterate(method(self._inner, *arguments, **options)):
            yield _shown(item, self._loop)

    return call


def _shown(value: Any, loop: LoopThread) -> Any:
    """Return the value, or the blocking session or operation of one."""
    if isinstance(value, Session):
        shown = {one.name: getattr(value, one.name) for one in dataclasses.fields(SessionFields)}
        return SyncSession(**shown, _inner=value, _loop=loop)
    if isinstance(value, Operation):
        shown = {one.name: getattr(value, one.name) for one in dataclasses.fields(OperationFields)}
        return SyncOperation(**shown, _inner=value, _loop=loop)
    return value


@dataclass(frozen=True, slots=True)
class SyncSession(SessionFields):
    """A session as `Session`, whose methods block."""

    _inner: Session = field(repr=False, compare=False)
    _loop: LoopThread = field(repr=False, compare=False)

    result = _blocking(Session.result)
    events = _iterated(Session.events)
    live = _iterated(Session.live)
    send = _blocking(Session.send)
    interrupt = _blocking(Session.interrupt)
    kill = _blocking(Session.kill)
    archive = _blocking(Session.archive)
    delete = _blocking(Session.delete)
    refresh = _session(Session.refresh)
    children = _sessions(Session.children)
    usage = _blocking(Session.usage)
    set_budget = _blocking(Session.set_budget)
    outputs = _iterated(Session.outputs)
    save_outputs = _blocking(Session.save_outputs)
    transcript = _iterated(Session.transcript)
    search = _blocking(Session.search)


def _operation(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Operation]],
) -> Callable[Concatenate[Any, P], "SyncOperation"]:
    """Return the blocking method of one that returns an operation."""
    made: Callable[Concatenate[Any, P], SyncOperation] = _waiting(method)
    return made


def _operations(
    method: Callable[Concatenate[Any, P], AsyncIterator[Operation]],
) -> Callable[Concatenate[Any, P], Iterator["SyncOperation"]]:
    """Return the blocking method of one that yields operations."""
    made: Callable[Concatenate[Any, P], Iterator[SyncOperation]] = _iterating(method)
    return made


@dataclass(frozen=True, slots=True)
class SyncOperation(OperationFields):
    """An operation as `Operation`, whose methods block."""

    _inner: Operation = field(repr=False, compare=False)
    _loop: LoopThread = field(repr=False, compare=False)

    result = _blocking(Operation.result)
    refresh = _operation(Operation.refresh)
    cancel = _blocking(Operation.cancel)
    delete = _blocking(Operation.delete)


@dataclass(frozen=True, slots=True)
class _Group:
    _inner: Any
    _loop: LoopThread


class SyncAgents(_Group):
    """`mesh.agents`."""

    put = _blocking(Agents.put)
    update = _blocking(Agents.update)
    get = _blocking(Agents.get)
    list = _blocking(Agents.list)
    delete = _blocking(Agents.delete)


class SyncApprovals(_Group):
    """`mesh.approvals`."""

    list = _iterated(Approvals.list)
    get = _blocking(Approvals.get)
    approve = _blocking(Approvals.approve)
    deny = _blocking(Approvals.deny)
    answer = _blocking(Approvals.answer)


class SyncFiles(_Group):
    """`mesh.files`."""

    upload = _blocking(Files.upload)
    sets = _iterated(Files.sets)
    get = _blocking(Files.get)
    download = _blocking(Files.download)
    url = _blocking(Files.url)


class SyncModels(_Group):
    """`mesh.models`."""

    list = _blocking(Models.list)
    health = _blocking(Models.health)
    spend = _blocking(Models.spend)
    failures = _blocking(Models.failures)


class SyncOperations(_Group):
    """`mesh.operations`."""

    get = _operation(Operations.get)
    list = _operations(Operations.list)
    wait = _operation(Operations.wait)
    cancel = _blocking(Operations.cancel)
    delete = _blocking(Operations.delete)


class SyncPlugins(_Group):
    """`mesh.plugins`."""

    register = _blocking(Plugins.register)
    update = _blocking(Plugins.update)
    get = _blocking(Plugins.get)
    list = _blocking(Plugins.list)
    pause = _blocking(Plugins.pause)
    resume = _blocking(Plugins.resume)
    test = _blocking(Plugins.test)
    delete = _blocking(Plugins.delete)
    deliveries = _iterated(Plugins.deliveries)


class SyncSchedules(_Group):
    """`mesh.schedules`."""

    put = _blocking(Schedules.put)
    update = _blocking(Schedules.update)
    get = _blocking(Schedules.get)
    list = _blocking(Schedules.list)
    pause = _blocking(Schedules.pause)
    resume = _blocking(Schedules.resume)
    delete = _blocking(Schedules.delete)
    run = _blocking(Schedules.run)
    firings = _iterated(Schedules.firings)


class SyncTenants(_Group):
    """`mesh.tenants`."""

    create = _blocking(Tenants.create)
    update = _blocking(Tenants.update)
    get = _blocking(Tenants.get)
    settings = _blocking(Tenants.settings)
    list = _blocking(Tenants.list)
    status = _blocking(Tenants.status)
    delete = _operation(Tenants.delete)


class SyncWebhooks(_Group):
    """`mesh.webhooks`."""

    put = _blocking(Webhooks.put)
    update = _blocking(Webhooks.update)
    get = _blocking(Webhooks.get)
    list = _blocking(Webhooks.list)
    pause = _blocking(Webhooks.pause)
    resume = _blocking(Webhooks.resume)
    delete = _blocking(Webhooks.delete)
    rotate_secret = _blocking(Webhooks.rotate_secret)
    test = _blocking(Webhooks.test)
    deliveries = _iterated(Webhooks.deliveries)
    replay = _blocking(Webhooks.replay)
    replay_failed = _blocking(Webhooks.replay_failed)


@dataclass(frozen=True, slots=True)
class SyncMesh:
    """A mesh as `Mesh`, whose methods block. Several threads may use it at once."""

    _inner: Mesh = field(repr=False)
    _loop: LoopThread = field(repr=False)

    spawn = _session(Mesh.spawn)
    session = _session(Mesh.session)
    sessions = _sessions(Mesh.sessions)
    events = _iterated(Mesh.events)
    live = _iterated(Mesh.live)
    search = _blocking(Mesh.search)
    diff = _blocking(Mesh.diff)

    def run(self, task: str, *, timeout: float | None = None, **options: Any) -> Result:
        """Spawn a session and wait for its result."""
        return self.spawn(task, **options).result(timeout)

    @property
    def agents(self) -> SyncAgents:
        """The tenant's agents."""
        return SyncAgents(self._inner.agents, self._loop)

    @property
    def approvals(self) -> SyncApprovals:
        """The tool calls that wait for a person, and the questions of agents."""
        return SyncApprovals(self._inner.approvals, self._loop)

    @property
    def files(self) -> SyncFiles:
        """Uploads, and the files that sessions have."""
        return SyncFiles(self._inner.files, self._loop)

    @property
    def models(self) -> SyncModels:
        """The models that the mesh can call."""
        return SyncModels(self._inner.models, self._loop)

    @property
    def operations(self) -> SyncOperations:
        """The long work of the tenant."""
        return SyncOperations(self._inner.operations, self._loop)

    @property
    def plugins(self) -> SyncPlugins:
        """The tenant's plugins."""
        return SyncPlugins(self._inner.plugins, self._loop)

    @property
    def schedules(self) -> SyncSchedules:
        """The tenant's schedules, which spawn sessions by the clock."""
        return SyncSchedules(self._inner.schedules, self._loop)

    @property
    def tenants(self) -> SyncTenants:
        """All tenants. For operators of the mesh."""
        return SyncTenants(self._inner.tenants, self._loop)

    @property
    def webhooks(self) -> SyncWebhooks:
        """The tenant's webhooks, which are sent its events."""
        return SyncWebhooks(self._inner.webhooks, self._loop)


@contextmanager
def connect(
    url: str = "",
    *,
    token: Token | None = None,
    targets: Mapping[str, str] | None = None,
    settings: ConnectionSettings | None = None,
) -> Iterator[SyncMesh]:
    """Connect to a mesh as `spawnmesh_client.connect` does, and close it at the end of the block.

    Calls of other threads that run at the end are cancelled: they raise Cancelled.
    """
    opening = client.connect(url, token=token, targets=targets, settings=settings)
    with LoopThread.opened() as loop, loop.entered(opening) as mesh:
        yield SyncMesh(mesh, loop)


@contextmanager
def blocking(mesh: Mesh) -> Iterator[SyncMesh]:
    """Use a mesh that is no connection, such as a `FakeMesh`, through methods that block."""
    with LoopThread.opened() as loop:
        yield SyncMesh(mesh, loop)
