"""ExplainRoute: return what Generate would do with each candidate, without calling a provider."""

from dataclasses import replace
from datetime import datetime

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.candidates import Capability, Incapable, Ready, Skipped, SkipReason
from spawnmesh_model_router.domain.events import Attempt
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome, outcome_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.routing_request import ChainLink
from spawnmesh_model_router.operations.failover.attempt_plan import plan_attempt
from spawnmesh_model_router.operations.failover.dependencies import ChainDependencies
from spawnmesh_model_router.operations.failover.progress import ChainProgress
from spawnmesh_model_router.operations.failover.routing import assess_link, build_links
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.generate_messages import parse_generate_request
from spawnmesh_model_router.rpc.messages import render_verdict

_CHAIN_STOPPED = outcome_of(Skipped(SkipReason.CHAIN_STOPPED))


async def explain_route(
    request: pb.ExplainRouteRequest,
    caller: Caller,
    remaining_seconds: float | None,
    deps: Dependencies,
) -> pb.ExplainRouteResponse:
    """Return the outcome of each candidate by the present cooldowns, if the ones before it fail.

    Raises MeshError as Generate does before it calls a provider, budgets apart.
    """
    policy = await deps.policies.get(caller.tenant_id)
    chain = deps.chain
    deadline = chain.deadline_after(remaining_seconds)
    routing, content = await parse_generate_request(
        request.request, caller, policy, chain.config, deadline, chain.threads.read_schemas
    )
    progress = ChainProgress(routing, content, build_links(chain.config, routing))
    now = chain.clock()
    outcomes: list[Outcome] = []
    for link in progress.chain:
        refused = any(outcome.images is ImageOutcome.REFUSED for outcome in outcomes)
        outcomes.append(_CHAIN_STOPPED if refused else _explain(chain, progress, link, now))
    return pb.ExplainRouteResponse(
        candidates=[
            render_verdict(str(link.model), outcome)
            for link, outcome in zip(progress.chain, outcomes, strict=True)
        ]
    )


def _explain(chain: ChainDependencies, progress: ChainProgress, link: ChainLink, now: datetime) -> Outcome:
    verdict = assess_link(chain.availability, progress, link, now)
    if not isinstance(verdict, Ready):
        outcome = outcome_of(verdict)
        routed = isinstance(verdict, Incapable) and Capability.IMAGES in verdict.missing
        return replace(outcome, images=ImageOutcome.ROUTED_AROUND) if routed else outcome
    plan = plan_attempt(progress, link.model, chain.config)
    if plan.images is ImageOutcome.REFUSED:
        return replace(outcome_of(Incapable((Capability.IMAGES,))), images=plan.images)
    # The next candidate is called only if this one fails.
    number = len(progress.attempts) + 1
    progress.attempts.append(Attempt(number, link.model, now, now, FailoverReason.UNKNOWN))
    return Outcome("PROBE" if verdict.probe else "READY", images=plan.images, thinking=plan.thinking)
