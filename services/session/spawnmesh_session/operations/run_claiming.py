"""The claim of runs: take due runs from the queue, and give each to the caller with a lease."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.telemetry import continue_trace, record_elapsed

from spawnmesh_session.domain.agents import AgentProfile, require_agent
from spawnmesh_session.domain.enabled_hooks import EnabledHooks
from spawnmesh_session.domain.runs import Run, RunOutcome, RunState
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.metrics import RunMetrics
from spawnmesh_session.operations.claim_limits import ClaimingHarness, ClaimLimits
from spawnmesh_session.operations.claim_lines import ClaimLines
from spawnmesh_session.operations.run_release import release_run
from spawnmesh_session.operations.run_spans import run_traceparent
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.store import agents, run_queue, runs
from spawnmesh_session.store.run_queue import ServedRuns, TakenRun

_POLL_SECONDS = 1.0  # An expired lease notifies no claim; a new run does.
_CONTENDED_POLL_SECONDS = 0.02  # The time in which another claim picks its runs.
_CLAIM_SHARE = 1 / 3  # Of a lease: the rest of it is for the answer and the runner's first heartbeat.
_UNDO_SHARE = 1 / 6  # Of a lease.
_LEAST_SECONDS = 2.0  # For claims, and for undoing takes, if leases are very short.
_TRANSIENT = frozenset({Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, slots=True)
class RunAssignment:
    """A claimed run with everything that its runner must know."""

    tenant_id: str
    run: Run
    session: Session
    agent: AgentProfile
    time_left: timedelta
    was_held: bool
    unread_count: int
    hooks: EnabledHooks
    trace_content: bool


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A claim of at most `limit` runs of those that the runner serves.

    So many of the limit are `reserved` for tenants that have no running run.

    The runs are at most `max_bytes` together by `size_of`, but the first may have any size.
    `harness` is None for a runner of the mesh.
    """

    runner_id: str
    limit: int
    reserved: int
    served: ServedRuns
    max_bytes: int
    size_of: Callable[[RunAssignment], int]
    harness: ClaimingHarness | None = None


class _ResponseFull(Exception):
    """The run would make the response too large, and was not claimed."""


@dataclass(frozen=True, slots=True)
class RunClaimer:
    """Claims due runs: queued ones, and ones whose lease has expired."""

    database: Database
    listener: Listener
    terminator: RunTerminator
    metrics: RunMetrics
    lease_ttl: timedelta
    limits: ClaimLimits
    lines: ClaimLines

    async def claim(self, request: ClaimRequest, wait_seconds: float) -> list[RunAssignment]:
        """Return the claimed runs. Wait at most this long for the first, apart from the turn.

        Raises POOL_EXHAUSTED if the token of a harness has too many claims.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_seconds
        async with self.limits.claim(request.harness):
            while True:
                claimed = await self._claim_in_line(request, give_up)
                if claimed or loop.time() >= give_up:
                    return claimed
                await asyncio.sleep(_CONTENDED_POLL_SECONDS)  # No run that was taken could be claimed.

    async def _claim_in_line(self, request: ClaimRequest, give_up: float) -> list[RunAssignment]:
        """Take runs as the first in line, and claim them. If the time is over, look for them once.

        The next one in line need not wait for what keeps a claim, such as the lock of a session.
        """
        loop = asyncio.get_running_loop()
        async with self.lines.first_in_line(request.served, request.harness, give_up) as place:
            if place is None:
                claimed, _ = await self._look(request)
                return claimed
            with self.listener.subscription(run_queue.CHANNEL, *request.served.tenants) as queued:
                while True:
                    claimed, others_took = await self._look(request, place.leave)
                    left = give_up - loop.time()
                    if claimed or place.has_left or left <= 0:
                        return claimed
                    await queued.wait(min(left, _CONTENDED_POLL_SECONDS if others_took else _POLL_SECONDS))

    async def _look(
        self, request: ClaimRequest, has_taken: Callable[[], None] | None = None
    ) -> tuple[list[RunAssignment], bool]:
        """Take runs, call `has_taken`, and claim them. Return also whether to look again soon."""
        async with self.limits.turn(request.harness):
            return await self._claim_or_release(request, has_taken)

    async def _claim_or_release(
        self, request: ClaimRequest, has_taken: Callable[[], None] | None
    ) -> tuple[list[RunAssignment], bool]:
        """Return the claimed runs, and whether it is worth looking again soon.

        If the caller cancels meanwhile, release what was claimed for it.
        """
        claiming = asyncio.create_task(self._take_and_claim(request, has_taken))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.shield(self._release_all(claiming))
            raise

    async def _take_and_claim(
        self, request: ClaimRequest, has_taken: Callable[[], None] | None
    ) -> tuple[list[RunAssignment], bool]:
        taken = await run_queue.take_claimable_runs(
            self.database, request.limit, self.lease_ttl, request.served, reserved=request.reserved
        )
        if taken.runs and has_taken is not None:
            has_taken()
        return await self._claim_taken(request, taken.runs), taken.others_took

    async def _release_all(self, claiming: "asyncio.Task[tuple[list[RunAssignment], bool]]") -> None:
        """Release what was claimed for a caller that is gone.

        Never raises: the rest waits for its lease.
        """
        log = structlog.get_logger()
        try:
            claimed, _ = await claiming
        except Exception as error:  # noqa: BLE001 - the caller that would receive it is gone.
            log.warning("claim_failed", error=error_label(error))
            return
        for one in claimed:
            try:
                await release_run(self.database, one.tenant_id, one.run.run_id, one.run.epoch)
            except Exception as error:  # noqa: BLE001 - the other runs are released all the same.
                log.warning("run_not_released", run=one.run.run_id, error=error_label(error))

    async def _claim_taken(self, request: ClaimRequest, taken: list[TakenRun]) -> list[RunAssignment]:
        """Claim each run in a transaction of its own, which takes its locks in the common order.

        - A run that cannot be claimed waits until its lease has expired, and is failed after its
          attempts.
        - If the database could not answer, the take of the run is undone.
        - If the response would be too large, the takes of the rest are undone, but never of the
          first.
        - After a third of the lease, the takes of the rest are undone too: whatever a claim has
          waited for, the leases of the claimed runs are fresh when they are answered.
        """
        log = structlog.get_logger()
        claimed: list[RunAssignment] = []
        rest: list[TakenRun] = []
        failed: list[TakenRun] = []
        free_bytes: int | None = None
        loop, lease_seconds = asyncio.get_running_loop(), self.lease_ttl.total_seconds()
        claim_until = loop.time() + max(lease_seconds * _CLAIM_SHARE, _LEAST_SECONDS)
        undo_until = claim_until + max(lease_seconds * _UNDO_SHARE, _LEAST_SECONDS)
        for waiting in taken:
            tenant_id, run_id = waiting.tenant_id, waiting.run_id
            if loop.time() >= claim_until:
                rest.append(waiting)
                continue
            try:
                async with asyncio.timeout_at(claim_until):
                    one = await self._claim_one(request, waiting, free_bytes)
            except _ResponseFull:
                free_bytes = 0
                rest.append(waiting)
                continue
            except Exception as error:  # noqa: BLE001
                # The runs of other tenants are claimed all the same.
                log.warning("claim_failed", tenant=tenant_id, run=run_id, error=error_label(error))
                if _is_transient(error):
                    failed.append(waiting)
                continue
            if one is None:
                log.info("run_not_claimed", tenant=tenant_id, run=run_id)
                continue
            self._report(one, waiting.wait)
            claimed.append(one)
            free_bytes = max(
                0, (request.max_bytes if free_bytes is None else free_bytes) - request.size_of(one)
            )
        # An undone take is the last of its tenant. So the next claim tries the others first.
        for unclaimed in (*rest, *failed):
            await self._undo_take(unclaimed, undo_until)
        return claimed

    def _report(self, one: RunAssignment, wait: timedelta) -> None:
        """Count the claim, and show in the trace how long the run has waited for it.

        A run waits from the time at which it was queued or released, from the end of its delay, or
        from the end of the lease of a lost runner.
        """
        with continue_trace(run_traceparent(one.session, one.run.run_id)):
            self.metrics.claimed(one.run, runtime=one.session.runtime, was_held=one.was_held)
            record_elapsed(
                "wait in queue",
                wait,
                gen_ai__conversation__id=one.session.session_id,
                spawnmesh__run__id=one.run.run_id,
                spawnmesh__attempt=one.run.attempt_count,
            )

    async def _undo_take(self, taken: TakenRun, until: float) -> None:
        """Make a taken run claimable again, by this time of the event loop.

        Never raises: otherwise the run waits for its lease.
        """
        try:
            if asyncio.get_running_loop().time() >= until:
                raise TimeoutError
            async with asyncio.timeout_at(until), self.database.pipelined(taken.tenant_id) as connection:
                await run_queue.undo_take(connection, taken)
        except Exception as error:  # noqa: BLE001 - the other runs are handled all the same.
            structlog.get_logger().warning("take_not_undone", run=taken.run_id, error=error_label(error))

    async def _claim_one(
        self, request: ClaimRequest, taken: TakenRun, free_bytes: int | None
    ) -> RunAssignment | None:
        """Claim a taken run. Return None if it has ended, or ends here without its deleted agent,
        or if its take is void.

        Raise _ResponseFull, with nothing done, if the run needs more than `free_bytes`.
        """
        if free_bytes == 0:
            raise _ResponseFull
        try:
            async with self.database.pipelined(taken.tenant_id) as connection:
                claimed = await runs.claim_run(
                    connection, taken, runner_id=request.runner_id, lease_ttl=self.lease_ttl
                )
                if claimed is None:
                    return None
                agent = require_agent(claimed.session.agent_id, claimed.agent)
                one = RunAssignment(
                    taken.tenant_id,
                    claimed.run,
                    claimed.session,
                    agent,
                    claimed.time_left,
                    claimed.was_held,
                    claimed.unread_count,
                    claimed.hooks,
                    claimed.trace_content,
                )
                if free_bytes is not None and request.size_of(one) > free_bytes:
                    raise _ResponseFull
                return one
        except MeshError as error:
            if error.reason is not Reason.UNKNOWN_AGENT:
                raise
            await self._end_without_agent(taken, error)
            return None

    async def _end_without_agent(self, taken: TakenRun, error: MeshError) -> None:
        """Fail a run whose agent was deleted.

        Undo its take if the agent was written again meanwhile.
        """
        tenant_id = taken.tenant_id
        async with self.database.pipelined(tenant_id) as connection:
            locked = await runs.lock_run_with_sessions(connection, tenant_id, taken.run_id)
            if await agents.get_agent(connection, tenant_id, locked.session.agent_id) is not None:
                await run_queue.undo_take(connection, taken)
                return
            outcome = RunOutcome(
                state=RunState.FAILED, error_reason=error.reason, error_message=error.message
            )
            await self.terminator.terminate(connection, tenant_id, locked, outcome)


def _is_transient(error: Exception) -> bool:
    """Return whether the database could not answer in time, so that the run itself may be sound."""
    if isinstance(error, TimeoutError):
        return True
    refusal = translate(error)
    return refusal is not None and refusal.status in _TRANSIENT
