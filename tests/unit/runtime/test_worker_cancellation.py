"""Every worker ends when it is cancelled, also if a failure of the database replaces the
cancellation.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_attachment_blob.jobs import worker as attachment_blob
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.jobs.log_pruner import LogPruner
from spawnmesh_model_router.jobs.sync_cooldowns import sync_cooldowns
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache
from spawnmesh_postgres.jobs.job import JobKind
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.worker_heartbeats import send_heartbeats
from spawnmesh_runner.loop import claim_runs as claim
from spawnmesh_runner.loop import lease, run_changes
from spawnmesh_runner.loop.handover import Handover
from spawnmesh_runner.loop.interruption import Interruption
from spawnmesh_runner.loop.run_changes import RunChanges
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.impersonation import ReplaceableToken
from spawnmesh_session.jobs.sweep import Sweeper
from spawnmesh_transcript.jobs import worker as transcript
from spawnmesh_transcript.operations.change_notifier import ChangeNotifier

GONE = psycopg.OperationalError("the connection is gone")


class Leaving:
    """A database or a peer whose connection fails while a cancelled caller waits for it.

    `asked` counts the callers.
    """

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

    notify = measure = transact = call

    async def unary(self, *_: Any, **__: Any) -> None:
        await self._wait()

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        await self._wait()
        yield


def nothing(**known: Any) -> Any:
    """Return an object that stands for the other dependencies of a worker."""
    return type("Parts", (), {"__getattr__": lambda *_: None, **known})()


async def beat(database: Any) -> None:
    await send_heartbeats(database, "a worker")


async def sweep(database: Any) -> None:
    parts: Any = (nothing(), nothing(), nothing(), nothing())
    await Sweeper(database, *parts, timedelta(seconds=1), 0.01, gauges=database).sweep_forever()


async def run_jobs(database: Any) -> None:
    listener: Any = nothing(
        subscription=lambda *_: nothing(__enter__=lambda *_: nothing(), __exit__=lambda *_: None)
    )

    kind = JobKind("greet", nothing(), 2)
    worker = JobWorker(database, listener, [kind], nothing(), nothing(), grace_seconds=0.0)
    await worker.run_jobs_forever()


async def prune(database: Any) -> None:
    await LogPruner(database, timedelta(days=1)).prune_until_cancelled()


async def collect(database: Any) -> None:
    await attachment_blob.Worker(database, nothing(), 0.01, lambda _event: None, nothing()).work_once()
    raise AssertionError("it went on")


async def look_after_transcripts(database: Any) -> None:
    stop = asyncio.Event()
    worker = transcript.Worker(database, {}, nothing(), stop, interval_seconds=0.01, jobs=nothing())
    await worker.work_once()
    raise AssertionError("it went on")


async def announce(database: Any) -> None:
    notifier = ChangeNotifier()
    notifier.activities_recorded("acme")
    await notifier.notify_until_closed(database)


async def keep_cooldowns(database: Any) -> None:
    async def changed(_seconds: float) -> None:
        await asyncio.sleep(0)

    changes = nothing(wait=staticmethod(changed))
    await sync_cooldowns(CooldownCache(database, changes, nothing()), changes)


WORKERS: tuple[Callable[[Any], Awaitable[None]], ...] = (
    beat,
    sweep,
    run_jobs,
    prune,
    collect,
    look_after_transcripts,
    announce,
    keep_cooldowns,
)


@pytest.mark.parametrize("work", WORKERS)
async def test_it_ends_where_the_database_fails_when_it_is_told_to(
    work: Callable[[Any], Awaitable[None]],
) -> None:
    database = Leaving()
    await ends(asyncio.ensure_future(work(database)), database)


async def keep_lease(session: Any) -> None:
    lasting = Duration(nanos=20_000_000)
    claimed = run_pb.ClaimedRun(lease_ttl=lasting)
    await lease._heartbeat(
        nothing(session=session, runs=nothing()),
        claimed,
        ReplaceableToken("token"),
        Interruption(),
        RunChanges(),
        Handover(),
        0.5,
    )


async def follow_changes(session: Any) -> None:
    minter: Any = nothing(runner_token=lambda *_: "token")
    peers: Any = nothing(session=session, runs=nothing())
    await run_changes.follow_run_changes(peers, minter, "r", RunChanges())


async def claim_runs(session: Any) -> None:
    settings = RunnerSettings.model_construct(max_runs=1, claim_wait_seconds=1.0, runner_id="r")
    minter: Any = nothing(runner_token=lambda *_: "token")
    async with asyncio.TaskGroup() as group:
        await claim._claim_forever(
            group,
            set(),
            nothing(session=session, runs=nothing()),
            minter,
            settings,
            until_room=lambda: asyncio.sleep(0),
            execute=nothing(),
        )


@pytest.mark.parametrize("work", [keep_lease, claim_runs, follow_changes])
async def test_it_ends_where_a_peer_goes_away_when_it_is_told_to(
    work: Callable[[Any], Awaitable[None]],
) -> None:
    session = Leaving(MeshError(Reason.DEPENDENCY_UNAVAILABLE, "session is away"))
    await ends(asyncio.ensure_future(work(session)), session)


async def ends(task: "asyncio.Future[None]", waited_for: Leaving) -> None:
    await asyncio.wait_for(waited_for.asked.acquire(), 60)
    await asyncio.sleep(0.01)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=60)
    assert not pending, "it goes on"
    assert task.cancelled(), task.exception()
