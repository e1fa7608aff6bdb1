"""The life of one claimed run, from its claim to its end or its handing back."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import structlog
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_runtime.acting import HeldToken, acting_with_token
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_runner.assignment import Assignment, render_usage
from spawnmesh_runner.attachments import fetch_attachments
from spawnmesh_runner.domain import LOST, RUNNER_ERROR, Spending, failure_of
from spawnmesh_runner.lease import LeaseLost, while_leased
from spawnmesh_runner.loop import work_to_answer
from spawnmesh_runner.mcp.config import McpConfig, servers_for
from spawnmesh_runner.mcp.servers import open_servers
from spawnmesh_runner.mesh import Mesh
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runner.tools.registry import allowed
from spawnmesh_runner.transcript import acquire_writer, release_writer
from spawnmesh_runner.workspace import private_workspace

log = structlog.get_logger()

# A run that is handed back late is claimed by another runner a lease later; the process need not wait longer for it.
_RELEASE_SECONDS = 3.0


async def carry_run(claimed: pb.ClaimedRun, mesh: Mesh, settings: RunnerSettings, mcp: McpConfig) -> None:
    """Carries the run to an accepted answer or a failure, under the spawn's trace and with the run's token.

    When cancelled, hands the run back to the queue. When the run is lost, stops without another word. Either way nothing of its workspace is
    left, and the transcript has no writer by it. Raises nothing but CancelledError: the failure of a run is no failure of the runner.
    """
    with (
        continue_trace(claimed.traceparent),
        acting_with_token(claimed.run_token) as held,
        structlog.contextvars.bound_contextvars(
            tenant=claimed.tenant_id,
            session=claimed.session.session_id,
            run=claimed.run.run_id,
            epoch=claimed.run.epoch,
        ),
    ):
        spending = Spending()
        try:
            async with traced(
                f"invoke_agent {claimed.agent.agent_id}",
                gen_ai__operation__name="invoke_agent",
                gen_ai__agent__id=claimed.agent.agent_id,
                gen_ai__agent__name=claimed.agent.agent_id,
                gen_ai__conversation__id=claimed.session.session_id,
                gen_ai__request__model=next(iter(claimed.models), ""),
                spawnmesh__run__id=claimed.run.run_id,
                spawnmesh__parent_run__id=claimed.session.parent_run_id,
                spawnmesh__spawn__depth=claimed.session.depth,
                spawnmesh__attempt=claimed.run.attempt_count,
            ) as span:
                try:
                    await _carry(claimed, held, mesh, settings, mcp, spending)
                finally:
                    span.set_attribute("gen_ai.usage.input_tokens", spending.input_token_count)
                    span.set_attribute("gen_ai.usage.output_tokens", spending.output_token_count)
        except LeaseLost as lost:
            log.warning("run lost", why=str(lost))
        except asyncio.CancelledError:
            await _hand_back(claimed, mesh)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run fails with it, and _fail logs it
            await _fail(claimed, mesh, spending, error)
        finally:
            claim = WriterClaim(run_id=claimed.run.run_id, epoch=claimed.run.epoch)
            await release_writer(mesh, claimed.session.session_id, claim)


async def _carry(
    claimed: pb.ClaimedRun, held: HeldToken, mesh: Mesh, settings: RunnerSettings, mcp: McpConfig, spending: Spending
) -> None:
    async def work() -> None:
        name = f"{claimed.session.session_id}-{claimed.run.epoch}"
        servers = servers_for(mcp, claimed.agent.mcp_servers, claimed.tenant_id)
        async with private_workspace(settings.workspace_root, name) as workspace:
            assignment = Assignment(
                claimed=claimed,
                mesh=mesh,
                workspace=workspace,
                tools=allowed(claimed.agent.tools),
                generate_timeout_seconds=settings.generate_timeout_seconds,
                spending=spending,
            )
            await acquire_writer(assignment)
            await fetch_attachments(assignment)
            async with open_servers(servers, workspace) as offered:  # They find the files where they are.
                tools = {**assignment.tools, **{tool.name: tool for tool in offered.tools}}
                await work_to_answer(replace(assignment, tools=tools, note=offered.note))

    await while_leased(mesh, claimed, held, work(), heartbeat_share=settings.heartbeat_share)


async def _fail(claimed: pb.ClaimedRun, mesh: Mesh, spending: Spending, error: Exception) -> None:
    failure = failure_of(error)
    if failure.reason == RUNNER_ERROR:
        log.error("run failed", reason=failure.reason, exc_info=error)
    else:
        log.warning("run failed", reason=failure.reason, detail=failure.message)
    request = pb.FailRunRequest(
        epoch=claimed.run.epoch, reason=failure.reason, message=failure.message, usage=render_usage(spending)
    )
    try:
        await persistently(mesh.session, mesh.runs.FailRun, request)
    except MeshError as refused:
        # Whoever claims it next, once the lease is over, meets the same failure or does better.
        if not refused_with(refused, *LOST):
            log.warning("failure not reported", reason=refused.reason.value)


async def _hand_back(claimed: pb.ClaimedRun, mesh: Mesh) -> None:
    request = pb.ReleaseRunRequest(epoch=claimed.run.epoch)
    with suppress(MeshError):
        await mesh.session.unary(mesh.runs.ReleaseRun, request, timeout_seconds=_RELEASE_SECONDS)
        log.info("run handed back")
