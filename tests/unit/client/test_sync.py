"""The client for programs without asyncio, against services in this process."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest
from spawnmesh_client import Cancelled, EventKind, NotFound, RunNotDone, sync
from spawnmesh_client.agents import Agents
from spawnmesh_client.approvals import Approvals
from spawnmesh_client.client import Mesh
from spawnmesh_client.files import Files
from spawnmesh_client.loop_thread import LoopThread
from spawnmesh_client.models import Models
from spawnmesh_client.operations import Operation, Operations
from spawnmesh_client.plugins import Plugins
from spawnmesh_client.schedules import Schedules
from spawnmesh_client.session import Session
from spawnmesh_client.tenants import Tenants
from spawnmesh_client.webhooks import Webhooks
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    RUN_ID,
    SESSION_ID,
    FakeMesh,
    event,
    mesh,
    session_in,
    unset,
)

__all__ = ["mesh", "unset"]

PAIRS = [
    (Mesh, sync.SyncMesh),
    (Session, sync.SyncSession),
    (Agents, sync.SyncAgents),
    (Approvals, sync.SyncApprovals),
    (Files, sync.SyncFiles),
    (Models, sync.SyncModels),
    (Operation, sync.SyncOperation),
    (Operations, sync.SyncOperations),
    (Plugins, sync.SyncPlugins),
    (Schedules, sync.SyncSchedules),
    (Tenants, sync.SyncTenants),
    (Webhooks, sync.SyncWebhooks),
]


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_blocking_class_has_every_method_and_property(asynchronous: Any, blocking: Any) -> None:
    def public(kind: Any) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    missing = public(asynchronous) - public(blocking)
    assert missing == ({"wire"} if asynchronous is Mesh else set())
    for name, method in inspect.getmembers(blocking, inspect.isfunction):
        assert not inspect.iscoroutinefunction(method), name


async def in_thread(mesh: FakeMesh, keys: Path, body: Callable[[sync.SyncMesh], Any]) -> Any:
    """Run the body with a mesh in a thread that has no event loop, as a program without asyncio."""
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)

    def program() -> Any:
        with sync.connect(targets=mesh.targets, token=token) as client:
            return body(client)

    return await asyncio.to_thread(program)


async def test_session_is_spawned_followed_and_ended(mesh: FakeMesh, keys: Path) -> None:
    run, closed = session_pb2.SESSION_EVENT_KIND_RUN, session_pb2.SESSION_EVENT_KIND_CLOSED
    mesh.sessions.events = [event(1, run), event(2, closed)]

    def body(client: sync.SyncMesh) -> None:
        session = client.spawn("Work.", agent="clerk")
        assert isinstance(session, sync.SyncSession)
        assert session.result(timeout=60).text == "done"
        assert client.run("Work.", timeout=60).text == "done"
        assert [one.kind for one in session.events()] == [EventKind.RUN, EventKind.CLOSED]
        assert session.send("More.").run_id == RUN_ID
        assert session.interrupt("In French.") is None, "the fake has no run"
        assert session.kill() == 2
        assert session.refresh() == session
        (found,) = client.sessions()
        assert isinstance(found, sync.SyncSession)
        assert [agent.agent_id for agent in client.agents.list()] == ["default"]

    await in_thread(mesh, keys, body)


async def test_refusals_and_timeouts_are_the_same_exceptions(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_RUNNING)

    def body(client: sync.SyncMesh) -> None:
        with pytest.raises(NotFound):
            client.session(new_id(IdKind.SESSION))
        with pytest.raises(RunNotDone):
            client.session(SESSION_ID).result(timeout=0)

    await in_thread(mesh, keys, body)


async def test_several_threads_use_one_mesh(mesh: FakeMesh, keys: Path) -> None:
    def body(client: sync.SyncMesh) -> list[str]:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda n: client.run("Work.", label=str(n), timeout=60).text, range(40)))

    assert await in_thread(mesh, keys, body) == ["done"] * 40
    spawned = [one.label for one in mesh.sessions.requests if hasattr(one, "label")]
    assert sorted(spawned, key=int) == [str(n) for n in range(40)]


async def test_iterator_that_is_left_early_ends_its_call(mesh: FakeMesh, keys: Path) -> None:
    mesh.sessions.events = [event(1, session_pb2.SESSION_EVENT_KIND_RUN)]
    mesh.sessions.hold = asyncio.Event()

    def body(client: sync.SyncMesh) -> int:
        events = client.session(SESSION_ID).events()
        first = next(events)
        events.close()  # type: ignore[attr-defined]
        return first.number

    assert await in_thread(mesh, keys, body) == 1


async def test_calls_of_other_threads_are_cancelled_at_the_end_and_refused_after_it(
    mesh: FakeMesh, keys: Path
) -> None:
    mesh.sessions.hold = asyncio.Event()
    outcome: list[BaseException] = []
    kept: list[sync.SyncSession] = []

    def follow(session: sync.SyncSession) -> None:
        try:
            next(iter(session.events()))  # There is none: the call runs until it is cancelled.
        except BaseException as error:  # noqa: BLE001 - whatever ends it is compared below
            outcome.append(error)

    def body(client: sync.SyncMesh) -> threading.Thread:
        kept.append(client.session(SESSION_ID))
        other = threading.Thread(target=follow, args=(kept[0],))
        other.start()
        while not any(isinstance(one, WatchSessionRequest) for one in mesh.sessions.requests):
            time.sleep(0.01)
        return other

    other = await in_thread(mesh, keys, body)
    await asyncio.to_thread(other.join)
    (error,) = outcome
    assert isinstance(error, Cancelled), repr(error)
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        await asyncio.to_thread(kept[0].kill)


def test_closed_iterator_closes_what_it_iterates_over() -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    items = numbers()
    with LoopThread.opened() as loop:
        left, read = loop.iterate(items), loop.iterate(numbers())
        assert next(left) == 1
        left.close()  # type: ignore[attr-defined]
        assert closed == [True]
        assert list(read) == [1, 2]


def test_callback_that_would_wait_for_itself_is_refused() -> None:
    async def nothing() -> None:
        pass

    with LoopThread.opened() as loop:

        async def callback() -> str:
            try:
                loop.run(nothing())
            except RuntimeError as refused:
                return str(refused)
            return ""

        assert "wait for itself" in loop.run(callback())
    assert not [thread for thread in threading.enumerate() if thread.name == "spawnmesh-client"]


PROGRAM = """
import asyncio, signal, sys
from spawnmesh_client.loop_thread import LoopThread

# A shell that starts the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

cancelled = asyncio.Event()

async def forever():
    print("waits", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()

with LoopThread.opened() as loop:
    try:
        loop.run(forever())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    loop.run(asyncio.wait_for(cancelled.wait(), 60))
    print("cancelled", flush=True)
"""


def test_interrupt_ends_a_call_that_waits() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        os.kill(program.pid, signal.SIGINT)
        rest = program.stdout.read()
    assert (program.returncode, rest.split()) == (0, ["interrupted", "cancelled"])


def test_interrupt_between_the_start_of_a_call_and_its_wait_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.run_coroutine_threadsafe
    waits, cancelled = threading.Event(), threading.Event()

    def interrupted(work: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
        start(work, loop)
        assert waits.wait(60)
        raise KeyboardInterrupt

    async def forever() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with LoopThread.opened() as loop:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(forever())
        monkeypatch.undo()
        assert cancelled.wait(60)
