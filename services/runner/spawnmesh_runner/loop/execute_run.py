"""The life of one claimed run: from its claim to its answer, its failure or its release."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_client.run_events import reported_events
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import ReplaceableToken, use_token
from spawnmesh_runtime.telemetry import continue_trace, mark_failed, traced

from spawnmesh_runner.clients.mcp.config import McpConfig, commands_among, offered_servers
from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.clients.sandbox.sandbox import Sandbox
from spawnmesh_runner.clients.workspace import private_workspace
from spawnmesh_runner.clients.workspace_disk import WorkspaceDisk
from spawnmesh_runner.domain.failure import (
    Delay,
    Failure,
    McpSandboxUnavailable,
    describe_failure,
    find_delay,
    is_disk_full,
)
from spawnmesh_runner.domain.reasons import RUN_LOST
from spawnmesh_runner.domain.tools import RunParked
from spawnmesh_runner.domain.usage import UsageTotal
from spawnmesh_runner.loop.agent_loop import run_agent_loop
from spawnmesh_runner.loop.assignment import Assignment, render_usage, seconds_left
from spawnmesh_runner.loop.attachments import fetch_attachments
from spawnmesh_runner.loop.call_content import span_content
from spawnmesh_runner.loop.drafts import written_drafts
from spawnmesh_runner.loop.handover import Handover
from spawnmesh_runner.loop.interruption import Interruption, RunInterrupted
from spawnmesh_runner.loop.lease import LeaseLost, work_under_lease
from spawnmesh_runner.loop.parked_span import note_parked
from spawnmesh_runner.loop.run_changes import RunChanges
from spawnmesh_runner.loop.writer_claim import acquire_writer, release_writer
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.tools.calling.mcp_servers import open_mcp_servers
from spawnmesh_runner.tools.calling.registry import allowed

log = structlog.get_logger()

# Without the release another runner claims the run one lease later, so the process need not wait
# longer for it.
_RELEASE_SECONDS = 3.0
# A run token lives about as long. While the session service is away, no slot of the runner could
# be used anyway.
_HAND_BACK_SECONDS = 300.0


async def execute_run(
    claimed: pb.ClaimedRun,
    peers: Peers,
    settings: RunnerSettings,
    mcp: McpConfig,
    sandbox: Sandbox,
    disk: WorkspaceDisk,
    changes: RunChanges,
) -> None:
    """Work on the run until its answer is accepted, it fails, or a caller interrupted it.

    The work has the spawn's trace and the run's token. Its span has the reason if there is no
    answer.

    - When cancelled, release the run to the queue.
    - When a person must decide first, or a budget has no room, the run is given up until then.
    - When something that it needs is unavailable, release it to be tried again later.
    - When an outage kept the lease from being renewed, stop, and release it when the outage is
      over, unless another runner has it by then.
    - When the run is lost otherwise, stop without another write.

    In every case the workspace is removed. The writer claim is released, unless the answer was
    accepted: then the session service does it. Raises nothing but CancelledError: a failed run does
    not fail the runner.
    """
    with (
        continue_trace(claimed.traceparent),
        use_token(claimed.run_token) as held,
        structlog.contextvars.bound_contextvars(
            tenant=claimed.tenant_id,
            session=claimed.session.session_id,
            run=claimed.run.run_id,
            epoch=claimed.run.epoch,
        ),
    ):
        async with traced(
            f"invoke_agent {claimed.agent.agent_id}",
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__id=claimed.agent.agent_id,
            gen_ai__agent__name=claimed.agent.agent_id,
            gen_ai__agent__version=str(claimed.agent.version),
            gen_ai__conversation__id=claimed.session.session_id,
            spawnmesh__run__id=claimed.run.run_id,
            spawnmesh__parent_run__id=claimed.session.parent_run_id,
            spawnmesh__spawn__depth=claimed.session.depth,
            spawnmesh__attempt=claimed.run.attempt_count,
        ) as span:
            usage_total, start_seconds, is_accepted = UsageTotal(), monotonic_seconds(), False
            if claimed.models:
                span.set_attribute("gen_ai.request.model", claimed.models[0])
            try:
                await _work(
                    claimed, held, peers, settings, mcp, sandbox, disk, changes, usage_total, start_seconds
                )
                is_accepted = True
            except RunParked as parked:
                note_parked(span, parked)
                log.info(
                    "run_given_up",
                    why=str(parked),
                    approval=parked.approval_id,
                    budget_session=parked.budget_session_id,
                )
            except RunInterrupted:
                try:
                    await _end_interrupted(claimed, peers, usage_total)
                except asyncio.CancelledError:
                    await _release(claimed, peers)  # It ends with that.
                    raise
            except LeaseLost as lost:
                log.warning("run_lost", why=str(lost))
                mark_failed(span, Reason.RUN_LEASE_LOST.value)
                if lost.outage is not None:
                    await _hand_back(claimed, peers, lost.outage)
            except asyncio.CancelledError:
                await _release(claimed, peers)
                raise
            except Exception as error:  # noqa: BLE001 - _fail logs it
                if is_disk_full(error):
                    disk.met_full()
                delay = find_delay(error, seconds_left(claimed, start_seconds))
                failure = describe_failure(error)
                mark_failed(span, delay.reason if delay else failure.reason)
                if delay is None:
                    await _fail(claimed, peers, usage_total, failure, error)
                else:
                    await _delay(claimed, peers, delay)
            finally:
                span.set_attribute("gen_ai.usage.input_tokens", usage_total.input_token_count)
                span.set_attribute("gen_ai.usage.output_tokens", usage_total.output_token_count)
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage_total.cache_read_token_count)
                span.set_attribute("spawnmesh.run.cost_micros", usage_total.cost_micros)
                if not is_accepted:
                    claim = WriterClaim(run_id=claimed.run.run_id, epoch=claimed.run.epoch)
                    await release_writer(peers, claimed.session.session_id, claim)


async def _work(
    claimed: pb.ClaimedRun,
    held: ReplaceableToken,
    peers: Peers,
    settings: RunnerSettings,
    mcp: McpConfig,
    sandbox: Sandbox,
    disk: WorkspaceDisk,
    changes: RunChanges,
    usage_total: UsageTotal,
    start_seconds: float,
) -> None:
    if claimed.run.HasField("interrupt_time"):
        raise RunInterrupted
    interruption, handover = Interruption(), Handover()

    async def answer() -> None:
        name = f"{claimed.session.session_id}-{claimed.run.epoch}"
        servers = offered_servers(mcp, claimed.agent.mcp_servers, claimed.tenant_id)
        if sandbox.command_line is None and (names := commands_among(servers)):
            raise McpSandboxUnavailable(names)
        async with private_workspace(disk.root, name) as workspace:
            assignment = Assignment(
                claimed=claimed,
                peers=peers,
                workspace=workspace,
                max_workspace_bytes=settings.max_workspace_bytes,
                tools=allowed(claimed.agent.tools),
                span_content=span_content(settings.trace_content_max_bytes, claimed),
                generate_timeout_seconds=settings.generate_timeout_seconds,
                usage_total=usage_total,
                start_seconds=start_seconds,
                interruption=interruption,
                handover=handover,
            )
            if assignment.has_predecessors:  # Otherwise the first window does it.
                await acquire_writer(assignment)
            await fetch_attachments(assignment)
            # The servers find the files in the workspace.
            async with open_mcp_servers(servers, workspace, sandbox, settings.max_workspace_bytes) as offered:
                report = partial(call_with_retry, peers.session, peers.runs.ReportRunEvents)
                tools = {**assignment.tools, **{tool.name: tool for tool in offered.tools}}
                async with (
                    written_drafts(assignment.drafts, peers, assignment.session_id, assignment.writer),
                    reported_events(assignment.run_events, report, claimed),
                ):
                    await run_agent_loop(replace(assignment, tools=tools, tools_note=offered.note))

    await work_under_lease(
        peers,
        claimed,
        held,
        answer(),
        interruption,
        changes,
        handover,
        heartbeat_share=settings.heartbeat_share,
    )


async def _end_interrupted(claimed: pb.ClaimedRun, peers: Peers, usage_total: UsageTotal) -> None:
    """End the run as INTERRUPTED, unless it has ended otherwise, for example with its answer."""
    request = pb.EndInterruptedRunRequest(epoch=claimed.run.epoch, usage=render_usage(usage_total))
    try:
        await call_with_retry(peers.session, peers.runs.EndInterruptedRun, request)
        log.info("run_interrupted")
    except MeshError as refused:
        # If it is still interrupted, the next runner claims it when the lease ends, and ends it.
        if not refused_with(refused, *RUN_LOST, Reason.RUN_STATE):
            log.warning("interrupted_run_not_ended", reason=refused.reason.value)


async def _fail(
    claimed: pb.ClaimedRun, peers: Peers, usage_total: UsageTotal, failure: Failure, error: Exception
) -> None:
    if failure.reason is Reason.RUNNER_ERROR:
        log.error("run_failed", reason=failure.reason.value, exc_info=error)
    else:
        log.warning("run_failed", reason=failure.reason.value, detail=failure.message)
    request = pb.FailRunRequest(
        epoch=claimed.run.epoch,
        reason=reason_number(failure.reason),
        message=failure.message,
        usage=render_usage(usage_total),
    )
    try:
        await call_with_retry(peers.session, peers.runs.FailRun, request)
    except MeshError as refused:
        # The next runner claims it when the lease ends, and meets the same failure or succeeds.
        if not refused_with(refused, *RUN_LOST):
            log.warning("run_failure_not_reported", reason=refused.reason.value)


async def _hand_back(claimed: pb.ClaimedRun, peers: Peers, outage: MeshError) -> None:
    """Release a run whose lease ran out in an outage, so that the outage uses no attempt of it."""
    delay = Delay(outage.reason, "the lease could not be renewed: the session service was away", 0.0)
    await _delay(claimed, peers, delay)


async def _delay(claimed: pb.ClaimedRun, peers: Peers, delay: Delay) -> None:
    """Release the run with the delay, also if the session service is away for some minutes."""
    log.warning("run_delayed", reason=delay.reason.value, detail=delay.message)
    released = pb.ReleaseDelay(reason=reason_number(delay.reason), message=delay.message)
    request = pb.ReleaseRunRequest(epoch=claimed.run.epoch, delay=released)
    request.delay.min_pause.FromMilliseconds(int(delay.min_pause_seconds * 1000))
    try:
        await call_with_retry(
            peers.session, peers.runs.ReleaseRun, request, give_up_after_seconds=_HAND_BACK_SECONDS
        )
    except MeshError as refused:
        # The next runner claims it when the lease ends.
        if not refused_with(refused, *RUN_LOST):
            log.warning("run_not_released", reason=refused.reason.value)


async def _release(claimed: pb.ClaimedRun, peers: Peers) -> None:
    request = pb.ReleaseRunRequest(epoch=claimed.run.epoch)
    with suppress(MeshError):
        await peers.session.unary(peers.runs.ReleaseRun, request, timeout_seconds=_RELEASE_SECONDS)
        log.info("run_released")
