"""ClaimRuns. Claims due runs: queued ones, and ones whose lease has expired."""

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_calls.wire_times import duration_of, timestamp_of
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.tokens import HarnessClaim

from spawnmesh_session.operations.claim_limits import claiming_harness
from spawnmesh_session.operations.run_claiming import ClaimRequest, RunAssignment
from spawnmesh_session.operations.run_spans import run_traceparent
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import (
    parse_enum,
    parse_seconds,
    parse_text,
    render_agent,
    render_hooks,
    render_run,
    render_session,
    render_thinking,
)
from spawnmesh_session.store.run_queue import ServedRuns

# A response must be smaller than the 4 MiB of gRPC's default.
_MAX_RESPONSE_BYTES = 3 * 1024 * 1024
_FIXED_BYTES = 4096  # The token and the small fields.


async def claim_runs(
    request: pb.ClaimRunsRequest, caller: Caller, deps: Dependencies
) -> pb.ClaimRunsResponse:
    """Claim up to `max_run_count` runs of the runtimes, waiting at most `wait` for the first.

    The runner's token can limit the tenants and the agents. The claims of such a token have limits.
    """
    command = ClaimRequest(
        runner_id=parse_text("runner_id", request.runner_id),
        limit=request.max_run_count,
        reserved=request.reserved_run_count,
        served=ServedRuns(
            [
                parse_enum(session_pb2.Runtime, runtime, "RUNTIME_")
                for runtime in request.runtimes or [session_pb2.RUNTIME_SUBAGENT]
            ],
            caller.tenants,
            caller.agents,
        ),
        max_bytes=_MAX_RESPONSE_BYTES,
        size_of=_size_bytes,
        harness=claiming_harness(caller),
    )
    wait_seconds = parse_seconds(request.wait if request.HasField("wait") else None, 0.0)
    claimed = await deps.claimer.claim(command, wait_seconds)
    return pb.ClaimRunsResponse(runs=[_render(deps, caller, one) for one in claimed])


def _size_bytes(claimed: RunAssignment) -> int:
    """Return the maximum bytes that the run adds to a response. Models are in it twice."""
    models = sum(len(model.encode()) for model in claimed.agent.models)
    session, agent = render_session(claimed.session), render_agent(claimed.agent)
    return session.ByteSize() + agent.ByteSize() + models + _FIXED_BYTES


def _render(deps: Dependencies, caller: Caller, claimed: RunAssignment) -> pb.ClaimedRun:
    run, session, agent = claimed.run, claimed.session, claimed.agent
    models = dict.fromkeys(model for model in (session.model, *agent.models) if model)
    return pb.ClaimedRun(
        run=render_run(run),
        session=render_session(session),
        agent=render_agent(agent),
        models=models,
        run_token=deps.run_tokens.mint(
            claimed.tenant_id,
            session.session_id,
            run.run_id,
            run.epoch,
            claimed.time_left,
            harness=None if caller.is_of_the_mesh else HarnessClaim(caller.token_id, session.traceparent),
            has_budget=bool(session.budget_session_ids),
            agent_id=agent.agent_id,
        ),
        lease_ttl=duration_of(deps.lease_ttl),
        deadline_time=timestamp_of(run.deadline_time),
        time_left=duration_of(claimed.time_left),
        traceparent=run_traceparent(session, run.run_id),
        thinking=render_thinking(session.thinking or agent.thinking),
        tenant_id=claimed.tenant_id,
        first_epoch=run.first_epoch,
        enabled_hooks=render_hooks(claimed.hooks),
        pending_message_count=claimed.unread_count,
        approval_count=run.approval_count,
        trace_content=claimed.trace_content,
    )
