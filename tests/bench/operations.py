"""The operations whose cost is measured, on a mesh that does nothing else."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh.session.v1.session_pb2 import Session
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.stack import Stack

from tests.bench.transcript import answer, spoken, transcripts

TENANT = "bench-cost"
TASK = "Say in one word whether the sky is blue."
_FILE = Attachment("numbers.csv", b"day,amount\n" + b"1,12.50\n" * 512)
_RUN_SECONDS = 30.0
NAMES = ("read", "append", "run", "run.file", "spawn", "spawn.file")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a user, or a run with all that it causes. `sessions` are those that it made.

    One without a runner leaves its sessions waiting; they are killed when all calls are made.
    """

    call: Callable[[], Awaitable[object]]
    has_runner: bool = True
    sessions: list[Session] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations by name, and the mesh that they are called at."""

    stack: Stack
    mesh: WireMesh
    by_name: Mapping[str, Operation]

    @asynccontextmanager
    async def prepared(self, operation: Operation) -> AsyncIterator[None]:
        """Hold the runner for the block if the operation has none: it would do the work that the
        calls leave.
        """
        if operation.has_runner:
            yield
            return
        runner = self.stack.processes["runner"]
        runner.pause()
        try:
            yield
            for session in operation.sessions:
                await self.mesh.kill(session.session_id)
        finally:
            runner.resume()


@asynccontextmanager
async def open_operations(stack: Stack) -> AsyncIterator[Operations]:
    """Make a tenant without plugins, a session with an answer, and a transcript."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    async with (
        connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh,
        transcripts(stack, ALWAYS_OFF, TENANT) as begin,
    ):
        session = await mesh.spawn(TASK, wait_seconds=_RUN_SECONDS)
        transcript = await begin()
        operations = (
            Operation(lambda: mesh.session(session.session_id)),
            Operation(lambda: transcript.append(answer(spoken(1024)))),
            _spawning(mesh),
            _spawning(mesh, [_FILE]),
            _spawning(mesh, has_runner=False),
            _spawning(mesh, [_FILE], has_runner=False),
        )
        yield Operations(stack, mesh, dict(zip(NAMES, operations, strict=True)))


def _spawning(
    mesh: WireMesh, attachments: Sequence[Attachment] = (), *, has_runner: bool = True
) -> Operation:
    """Return the operation that spawns a session, and waits for its answer if there is a runner."""
    sessions: list[Session] = []

    async def spawn() -> None:
        wait_seconds = _RUN_SECONDS if has_runner else 0.0
        sessions.append(await mesh.spawn(TASK, attachments=attachments, wait_seconds=wait_seconds))

    return Operation(spawn, has_runner, sessions)


async def repeat(count: int, call: Callable[[], Awaitable[object]]) -> None:
    """Make the call so many times, one after the other."""
    for _ in range(count):
        await call()
