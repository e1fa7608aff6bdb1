"""ClassifyError: return the failover reason of a provider's error."""

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_model_router.domain.classify import classify
from spawnmesh_model_router.domain.reasons import CHAIN_STOPPING, TRANSIENT_REASONS, ModelFailure
from spawnmesh_model_router.rpc.dependencies import Dependencies
from spawnmesh_model_router.rpc.messages import render_reason


async def classify_error(
    request: pb.ClassifyErrorRequest, _caller: Caller, _deps: Dependencies
) -> pb.ClassifyErrorResponse:
    """Classify the error by the rules that the router itself uses."""
    reason = classify(
        ModelFailure(
            status=request.http_status or None,
            message=request.message,
            code=request.code,
            error_type=request.error_type,
            provider=request.provider,
            details=tuple(request.details),
            cause_messages=tuple(request.causes),
        )
    )
    return pb.ClassifyErrorResponse(
        reason=render_reason(reason),
        is_transient=reason in TRANSIENT_REASONS,
        stops_chain=reason in CHAIN_STOPPING,
    )
