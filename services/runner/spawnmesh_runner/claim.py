"""Claiming: as many runs as there is room for, each carried by a task of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_runner.domain import backoff_seconds
from spawnmesh_runner.mesh import Mesh
from spawnmesh_runner.retry import jitter
from spawnmesh_runner.settings import RunnerSettings

log = structlog.get_logger()

_ANSWER_SECONDS = 10.0
_TELL_AGAIN_SECONDS = 60.0  # While runs cannot be claimed for one and the same reason.

Carry = Callable[[pb.ClaimedRun], Awaitable[None]]


async def claim_until(
    stop: asyncio.Event, mesh: Mesh, minter: TokenMinter, settings: RunnerSettings, carry: Carry
) -> None:
    """Claims and carries runs until `stop` is set; then gives those at work `drain_grace_seconds`, and cancels the rest.

    A session service that is away is asked again, ever less often.
    """
    running: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        claiming = group.create_task(_claim_for_ever(group, running, mesh, minter, settings, carry))
        await stop.wait()
        claiming.cancel()
        log.info("claiming stopped", run_count=len(running))
        if running:
            await asyncio.wait(running, timeout=settings.drain_grace_seconds)
        for task in running:
            task.cancel()


async def _claim_for_ever(
    group: asyncio.TaskGroup,
    running: set[asyncio.Task[None]],
    mesh: Mesh,
    minter: TokenMinter,
    settings: RunnerSettings,
    carry: Carry,
) -> None:
    room = asyncio.Event()

    def ended(task: asyncio.Task[None]) -> None:
        running.discard(task)
        room.set()

    async def carry_one(claimed: pb.ClaimedRun) -> None:
        try:
            await carry(claimed)
        except Exception:
            log.exception("run dropped", run=claimed.run.run_id)  # the other runs must not fall with it

    failed_count = 0
    told: tuple[Reason, float] | None = None
    while True:
        if len(running) >= settings.max_runs:
            room.clear()
            await room.wait()
        try:
            claimed_runs = await _claim(mesh, minter, settings, settings.max_runs - len(running))
        except MeshError as error:
            heed_cancellation()
            now = monotonic_seconds()
            if told is None or told[0] is not error.reason or now - told[1] >= _TELL_AGAIN_SECONDS:
                log.warning("no runs can be claimed", reason=error.reason.value)
                told = (error.reason, now)
            await asyncio.sleep(backoff_seconds(failed_count, jitter=jitter(), floor=error.retry_after_seconds))
            failed_count += 1
            continue
        failed_count, told = 0, None
        for claimed in claimed_runs:
            task = group.create_task(carry_one(claimed))
            running.add(task)
            task.add_done_callback(ended)


async def _claim(mesh: Mesh, minter: TokenMinter, settings: RunnerSettings, free_count: int) -> Sequence[pb.ClaimedRun]:
    wait = Duration()
    wait.FromMilliseconds(int(settings.claim_wait_seconds * 1000))
    request = pb.ClaimRunsRequest(runner_id=settings.runner_id, max_run_count=free_count, wait=wait)
    with acting_with_token(minter.runner_token()):
        answer = await mesh.session.unary(
            mesh.runs.ClaimRuns, request, timeout_seconds=settings.claim_wait_seconds + _ANSWER_SECONDS
        )
    return answer.runs
