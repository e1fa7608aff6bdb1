"""Every worker ends when it is told to, also where the database fails at that moment and its error takes the place of the telling."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_attachment_blob import worker as attachment_blob
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.tellers import Tellers
from spawnmesh_model_router.cooldowns import Cooldowns
from spawnmesh_postgres.worker_beats import beat_for_ever
from spawnmesh_runner import claim, lease
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.acting import HeldToken
from spawnmesh_session.operations.sweep import Sweep
from spawnmesh_transcript import worker as transcript
from spawnmesh_transcript.announcements import Announcements

GONE = psycopg.OperationalError("the connection is gone")


class Leaving:
    """A database, or a peer, whose connection breaks under whoever is told to end while they wait for it. `asked` counts who waits."""

    def __init__(self, error: Exception = GONE) -> None:
        self.asked = asyncio.Semaphore(0)
        self._error = error

    async def _wait(self) -> None:
        self.asked.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise self._error from None

    @asynccontextmanager
    async def transaction(self, _tenant_id: str) -> AsyncIterator[None]:
        await self._wait()
        yield

    pipelined = transaction

    async def call(self, *_: Any) -> None:
        await self._wait()

    notify = measure = call

    async def unary(self, *_: Any, **__: Any) -> None:
        await self._wait()


def nothing(**known: Any) -> Any:
    """Whatever else a worker is made of."""
    return type("Parts", (), {"__getattr__": lambda *_: None, **known})()


async def beat(database: Any) -> None:
    await beat_for_ever(database, "a worker")


async def sweep(database: Any) -> None:
    await Sweep(
        database, nothing(), nothing(), nothing(), nothing(), nothing(), nothing(), 0.01, backlog=database
    ).run_for_ever()


async def tell(database: Any) -> None:
    @asynccontextmanager
    async def once() -> AsyncIterator[None]:
        yield

    class Listener:
        def subscription(self, *_: str) -> Any:
            return nothing(__enter__=lambda *_: nothing(), __exit__=lambda *_: None)

    await tellers(database, Listener()).tell_for_ever()


async def prune(database: Any) -> None:
    await tellers(database, nothing()).prune_for_ever()


def tellers(database: Any, listener: Any) -> Tellers:
    return Tellers(database, listener, nothing(), nothing(), at_once=2, kept_for=timedelta(days=1))


async def collect(database: Any) -> None:
    await attachment_blob.Worker(database, nothing(), 0.01).work_once()
    raise AssertionError("it went on")


async def look_after_transcripts(database: Any) -> None:
    await transcript.Worker(database, {}, nothing(), asyncio.Event(), interval_seconds=0.01).work_once()
    raise AssertionError("it went on")


async def announce(database: Any) -> None:
    announcements = Announcements()
    announcements.happened("acme")
    await announcements.announce_until_closed(database)


async def keep_cooldowns(database: Any) -> None:
    async def changed(_seconds: float) -> None:
        await asyncio.sleep(0)

    await Cooldowns(database, nothing(wait=staticmethod(changed)), nothing()).keep_for_ever()


WORKERS: tuple[Callable[[Any], Awaitable[None]], ...] = (
    beat,
    sweep,
    tell,
    prune,
    collect,
    look_after_transcripts,
    announce,
    keep_cooldowns,
)


@pytest.mark.parametrize("work", WORKERS)
async def test_it_ends_where_the_database_fails_when_it_is_told_to(work: Callable[[Any], Awaitable[None]]) -> None:
    database = Leaving()
    await ends(asyncio.ensure_future(work(database)), database)


async def keep_lease(session: Any) -> None:
    lasting = Duration(nanos=20_000_000)
    claimed = run_pb.ClaimedRun(lease_ttl=lasting)
    await lease._keep(nothing(session=session, runs=nothing()), claimed, HeldToken("token"), 0.5)


async def claim_runs(session: Any) -> None:
    settings = RunnerSettings.model_construct(max_runs=1, claim_wait_seconds=1.0, runner_id="r")
    minter: Any = nothing(runner_token=lambda *_: "token")
    async with asyncio.TaskGroup() as group:
        await claim._claim_for_ever(
            group, set(), nothing(session=session, runs=nothing()), minter, settings, carry=nothing()
        )


@pytest.mark.parametrize("work", [keep_lease, claim_runs])
async def test_it_ends_where_a_peer_goes_away_when_it_is_told_to(work: Callable[[Any], Awaitable[None]]) -> None:
    session = Leaving(MeshError(Reason.DEPENDENCY_UNAVAILABLE, "session is away"))
    await ends(asyncio.ensure_future(work(session)), session)


async def ends(task: "asyncio.Future[None]", waited_for: Leaving) -> None:
    await asyncio.wait_for(waited_for.asked.acquire(), 5)
    await asyncio.sleep(0.01)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=5)
    assert not pending, "it goes on"
    assert task.cancelled(), task.exception()
