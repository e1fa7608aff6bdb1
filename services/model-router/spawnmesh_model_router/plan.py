"""What a retry may carry and is told, for callers that go down a chain of their own."""

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb

from spawnmesh_model_router.domain.images import images_for_attempt
from spawnmesh_model_router.domain.partial import notice, told_names
from spawnmesh_model_router.parse import parse_partials, parse_reason


def plan_retry(request: pb.PlanRetryRequest) -> pb.PlanRetryResponse:
    """By the same rules that the service's own chains go by."""
    allowed = images_for_attempt(
        is_retry=request.is_retry,
        previous_reason=parse_reason(request.previous_reason),
        provider=request.provider.strip().lower() or None,
        first_provider=request.first_provider.strip().lower() or None,
    )
    done = parse_partials(request.partial_executions)
    response = pb.PlanRetryResponse(
        image_count=request.image_count if allowed.keep_images else 0,
        prompt_image_detection_suppressed=allowed.suppress_prompt_image_detection,
    )
    idempotent = frozenset(request.idempotent_tool_names)
    told = told_names(done, idempotent) if done is not None else ()
    if done is not None and (told or done.sent_to_person):
        merged = generation_pb2.PartialExecution(tool_names=told, sent_to_person=done.sent_to_person)
        response.partial_execution.CopyFrom(merged)
    if request.is_retry:
        provider = request.provider.strip().lower()
        response.notice = (
            notice(
                done,
                provider=provider,
                first_provider=request.first_provider.strip().lower() or provider,
                idempotent=idempotent,
            )
            or ""
        )
    return response
