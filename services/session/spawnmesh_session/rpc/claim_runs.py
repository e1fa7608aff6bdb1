"""ClaimRuns. Claims due runs: queued ones, and ones whose lease has expired."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError, error_label
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.errors import translate
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.agents import AgentProfile, require_agent
from spawnmesh_session.domain.runs import Run, RunOutcome, RunState
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.run_requeue import requeue_run
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import (
    parse_enum,
    parse_seconds,
    parse_text,
    render_agent,
    render_duration,
    render_run,
    render_session,
    render_thinking,
    render_time,
)
from spawnmesh_session.store import agents, runs, work_queue

_POLL_SECONDS = 1.0  # An expired lease notifies no claim; a new run does.
_CONTENDED_POLL_SECONDS = 0.02  # The time in which another claim picks its runs.
# A response must be smaller than the 4 MiB of gRPC's default.
_MAX_RESPONSE_BYTES = 3 * 1024 * 1024
_FIXED_BYTES = 4096  # The token and the small fields.
_TRANSIENT = frozenset({Status.UNAVAILABLE, Status.ABORTED, Status.RESOURCE_EXHAUSTED})


async def claim_runs(
    request: pb.ClaimRunsRequest, caller: Caller, deps: Dependencies
) -> pb.ClaimRunsResponse:
    """Claim up to `max_run_count` runs of the runtimes, waiting at most `wait` for the first."""
    runner_id = parse_text("runner_id", request.runner_id)
    runtimes = [
        parse_enum(session_pb2.Runtime, runtime, "RUNTIME_")
        for runtime in request.runtimes or [session_pb2.RUNTIME_SUBAGENT]
    ]
    loop = asyncio.get_running_loop()
    give_up = loop.time() + parse_seconds(request.wait if request.HasField("wait") else None, 0.0)
    with deps.listener.subscription("run_queued") as queued:
        while True:
            claimed, others_took = await _claim_or_requeue(deps, runner_id, request.max_run_count, runtimes)
            left = give_up - loop.time()
            if claimed or left <= 0:
                return pb.ClaimRunsResponse(runs=[_render(deps, one) for one in claimed])
            await queued.wait(min(left, _CONTENDED_POLL_SECONDS if others_took else _POLL_SECONDS))


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A claimed run with everything that its runner must know: an item of the response."""

    tenant_id: str
    run: Run
    session: Session
    agent: AgentProfile
    time_left: timedelta
    was_held: bool

    @property
    def size_bytes(self) -> int:
        """Return the maximum bytes that the run adds to a response. Models are in it twice."""
        models = sum(len(model.encode()) for model in self.agent.models)
        return (
            render_session(self.session).ByteSize()
            + render_agent(self.agent).ByteSize()
            + models
            + _FIXED_BYTES
        )


class _ResponseFull(Exception):
    """The run would make the response too large, and was not claimed."""


async def _claim_or_requeue(
    deps: Dependencies, runner_id: str, limit: int, runtimes: Sequence[str]
) -> tuple[list[_Assignment], bool]:
    """Return the claimed runs, and whether it is worth looking again soon.

    If the caller cancels meanwhile, requeue what was claimed for it.
    """
    claiming = asyncio.create_task(_take_and_claim(deps, runner_id, limit, runtimes))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        await asyncio.shield(_requeue_all(deps, claiming))
        raise


async def _take_and_claim(
    deps: Dependencies, runner_id: str, limit: int, runtimes: Sequence[str]
) -> tuple[list[_Assignment], bool]:
    taken = await work_queue.take_claimable_runs(deps.database, limit, deps.lease_ttl, runtimes)
    return await _claim_taken(deps, taken.runs, runner_id), taken.others_took


async def _requeue_all(deps: Dependencies, claiming: "asyncio.Task[tuple[list[_Assignment], bool]]") -> None:
    """Requeue what was claimed for a caller that is gone.

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
            await requeue_run(deps.database, one.tenant_id, one.run.run_id, one.run.epoch)
        except Exception as error:  # noqa: BLE001 - the other runs are requeued all the same.
            log.warning("run_not_requeued", run=one.run.run_id, error=error_label(error))


async def _claim_taken(deps: Dependencies, taken: list[tuple[str, str]], runner_id: str) -> list[_Assignment]:
    """Claim each run in a transaction of its own, which takes its locks in the common order.

    - A run that cannot be claimed waits until its lease has expired, and is failed after its
      attempts.
    - If the database could not answer, the lease of the run is released at once.
    - If the response would be too large, the leases of the rest are released, but never of the
      first.
    """
    claimed: list[_Assignment] = []
    free_bytes: int | None = None
    for tenant_id, run_id in taken:
        try:
            one = await _claim_one(deps, tenant_id, run_id, runner_id, free_bytes)
        except _ResponseFull:
            free_bytes = 0
            await _undo_take(deps, tenant_id, run_id)
            continue
        except Exception as error:  # noqa: BLE001
            # The runs of other tenants are claimed all the same.
            structlog.get_logger().warning(
                "claim_failed", tenant=tenant_id, run=run_id, error=error_label(error)
            )
            if _is_transient(error):
                await _undo_take(deps, tenant_id, run_id)
            continue
        if one is not None:
            deps.metrics.claimed(one.run, was_held=one.was_held)
            claimed.append(one)
            free_bytes = max(0, (_MAX_RESPONSE_BYTES if free_bytes is None else free_bytes) - one.size_bytes)
    return claimed


async def _undo_take(deps: Dependencies, tenant_id: str, run_id: str) -> None:
    """Make a taken run claimable again. Never raises: otherwise the run waits for its lease."""
    try:
        async with deps.database.pipelined(tenant_id) as connection:
            await work_queue.undo_take(connection, tenant_id, run_id)
    except Exception as error:  # noqa: BLE001 - the other runs are handled all the same.
        structlog.get_logger().warning("run_not_requeued", run=run_id, error=error_label(error))


async def _claim_one(
    deps: Dependencies, tenant_id: str, run_id: str, runner_id: str, free_bytes: int | None
) -> _Assignment | None:
    """Claim a taken run; return None if it has ended or ends here because its agent was deleted.

    Raise _ResponseFull, with nothing done, if the run needs more than `free_bytes`.
    """
    if free_bytes == 0:
        raise _ResponseFull
    try:
        async with deps.database.pipelined(tenant_id) as connection:
            claimed = await runs.claim_run(
                connection, tenant_id, run_id, runner_id=runner_id, lease_ttl=deps.lease_ttl
            )
            if claimed is None:
                return None
            agent = require_agent(claimed.session.agent_id, claimed.agent)
            one = _Assignment(
                tenant_id, claimed.run, claimed.session, agent, claimed.time_left, claimed.was_held
            )
            if free_bytes is not None and one.size_bytes > free_bytes:
                raise _ResponseFull
            return one
    except MeshError as error:
        if error.reason is not Reason.UNKNOWN_AGENT:
            raise
        await _end_without_agent(deps, tenant_id, run_id, error)
        return None


async def _end_without_agent(deps: Dependencies, tenant_id: str, run_id: str, error: MeshError) -> None:
    """Fail a run whose agent was deleted.

    Release its lease if the agent was written again meanwhile.
    """
    async with deps.database.transaction(tenant_id) as connection:
        locked = await runs.lock_run_with_sessions(connection, tenant_id, run_id)
        if await agents.get_agent(connection, tenant_id, locked.session.agent_id) is not None:
            await work_queue.undo_take(connection, tenant_id, run_id)
            return
        outcome = RunOutcome(
            state=RunState.FAILED, error_reason=error.reason.value, error_message=error.message
        )
        await deps.terminator.terminate(connection, tenant_id, locked, outcome)


def _is_transient(error: Exception) -> bool:
    """Return whether the database could not answer, so that the run itself may be sound."""
    refusal = translate(error)
    return refusal is not None and refusal.status in _TRANSIENT


def _render(deps: Dependencies, claimed: _Assignment) -> pb.ClaimedRun:
    run, session, agent = claimed.run, claimed.session, claimed.agent
    models = dict.fromkeys(model for model in (session.model, *agent.models) if model)
    return pb.ClaimedRun(
        run=render_run(run),
        session=render_session(session),
        agent=render_agent(agent),
        models=models,
        run_token=deps.run_tokens.mint(
            claimed.tenant_id, session.session_id, run.run_id, run.epoch, claimed.time_left
        ),
        lease_ttl=render_duration(deps.lease_ttl),
        deadline_time=render_time(run.deadline_time),
        time_left=render_duration(claimed.time_left),
        traceparent=session.traceparent,
        thinking=render_thinking(session.thinking or agent.thinking),
        tenant_id=claimed.tenant_id,
        first_epoch=run.first_epoch,
    )
