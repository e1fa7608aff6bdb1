"""Claim as many runs as this process has capacity for, and execute each in a task of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

import structlog
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import backoff, mesh_error_of
from spawnmesh_runner.settings import RunnerSettings

log = structlog.get_logger()

_RESPONSE_SECONDS = 10.0
# The pause between claims while only reserved places are free, unless a run ends.
_RESERVED_PAUSE_SECONDS = 0.25
# The pause between warnings while runs cannot be claimed for the same reason.
_WARN_AGAIN_SECONDS = 60.0

UntilRoom = Callable[[], Awaitable[None]]
ExecuteRun = Callable[[pb.ClaimedRun], Awaitable[None]]


async def claim_runs(
    stop: asyncio.Event,
    running: set[asyncio.Task[None]],
    peers: Peers,
    minter: TokenMinter,
    settings: RunnerSettings,
    until_room: UntilRoom,
    execute: ExecuteRun,
) -> None:
    """Claim and execute runs until `stop` is set. Before each claim, wait `until_room`.

    `running` gets the tasks of the runs, each until it ends.

    After `stop`, wait `drain_grace_seconds` and cancel the rest.

    An unavailable session service is called again with backoff.
    """
    async with asyncio.TaskGroup() as group:
        claiming = group.create_task(
            _claim_forever(group, running, peers, minter, settings, until_room, execute)
        )
        await stop.wait()
        claiming.cancel()
        log.info("claiming_stopped", run_count=len(running))
        if running:
            await asyncio.wait(running, timeout=settings.drain_grace_seconds)
        for task in running:
            task.cancel()


async def _claim_forever(
    group: asyncio.TaskGroup,
    running: set[asyncio.Task[None]],
    peers: Peers,
    minter: TokenMinter,
    settings: RunnerSettings,
    until_room: UntilRoom,
    execute: ExecuteRun,
) -> None:
    has_capacity = asyncio.Event()

    def on_end(task: asyncio.Task[None]) -> None:
        running.discard(task)
        has_capacity.set()

    async def execute_one(claimed: pb.ClaimedRun) -> None:
        try:
            await execute(claimed)
        except Exception:
            log.exception("run_dropped", run=claimed.run.run_id)  # The other runs must continue.

    warned: tuple[Reason, float] | None = None

    def warn(state: RetryCallState) -> None:
        nonlocal warned
        raise_if_cancelled()
        error, now = mesh_error_of(state), monotonic_seconds()
        if warned is None or warned[0] is not error.reason or now - warned[1] >= _WARN_AGAIN_SECONDS:
            log.warning("runs_not_claimed", reason=error.reason.value)
            warned = (error.reason, now)

    attempts = AsyncRetrying(
        retry=retry_if_exception_type(MeshError), wait=backoff, before_sleep=warn, sleep=asyncio.sleep
    )
    while True:
        if len(running) >= settings.max_runs:
            has_capacity.clear()
            await has_capacity.wait()
        await until_room()
        has_capacity.clear()
        # A claim that waits keeps the number of places that it was made with. So a claim for the
        # reserved places alone does not wait: more places are free when a run ends.
        is_for_newcomers = bool(running) and _free_count(running, settings) <= settings.reserved_run_count
        wait_seconds = 0.0 if is_for_newcomers else settings.claim_wait_seconds
        claimed_runs: Sequence[pb.ClaimedRun] = await attempts(
            _claim, peers, minter, settings, running, wait_seconds
        )
        warned = None
        if is_for_newcomers and not claimed_runs:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RESERVED_PAUSE_SECONDS):
                    await has_capacity.wait()
        for claimed in claimed_runs:
            task = group.create_task(execute_one(claimed))
            running.add(task)
            task.add_done_callback(on_end)


def _free_count(running: Collection[asyncio.Task[None]], settings: RunnerSettings) -> int:
    return settings.max_runs - len(running)


async def _claim(
    peers: Peers,
    minter: TokenMinter,
    settings: RunnerSettings,
    running: Collection[asyncio.Task[None]],
    wait_seconds: float,
) -> Sequence[pb.ClaimedRun]:
    wait = Duration()
    wait.FromMilliseconds(int(wait_seconds * 1000))
    request = pb.ClaimRunsRequest(
        runner_id=settings.runner_id,
        max_run_count=_free_count(running, settings),
        reserved_run_count=settings.reserved_run_count,
        wait=wait,
    )
    with use_token(minter.runner_token()):
        response = await peers.session.unary(
            peers.runs.ClaimRuns, request, timeout_seconds=wait_seconds + _RESPONSE_SECONDS
        )
    return response.runs
