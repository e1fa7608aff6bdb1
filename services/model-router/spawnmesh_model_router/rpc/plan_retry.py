"""PlanRetry: what a retry may contain, for a caller with a failover chain of its own."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.images import images_for_attempt
from spawnmesh_model_router.domain.partial import merge, notice, reported_names
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import parse_partial_execution, parse_reason


async def plan_retry(
    request: pb.PlanRetryRequest, _caller: Caller, _deps: Dependencies
) -> pb.PlanRetryResponse:
    """Plan the retry by the rules that the router's own chains use."""
    provider = request.provider.strip().lower()
    first_provider = request.first_provider.strip().lower()
    allowed = images_for_attempt(
        is_retry=request.is_retry,
        previous_reason=parse_reason(request.previous_reason),
        provider=provider or None,
        first_provider=first_provider or None,
    )
    response = pb.PlanRetryResponse(
        image_count=request.image_count if allowed.keep_images else 0,
        prompt_image_detection_suppressed=allowed.suppress_prompt_image_detection,
    )
    done = merge(map(parse_partial_execution, request.partial_executions))
    idempotent = frozenset(request.idempotent_tool_names)
    names = reported_names(done, idempotent) if done is not None else ()
    if done is not None and (names or done.sent_to_person):
        merged = generation_pb2.PartialExecution(tool_names=names, sent_to_person=done.sent_to_person)
        response.partial_execution.CopyFrom(merged)
    if request.is_retry:
        text = notice(
            done, provider=provider, first_provider=first_provider or provider, idempotent=idempotent
        )
        response.notice = text or ""
    return response
