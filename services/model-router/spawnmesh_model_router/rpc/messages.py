"""Parse and render messages that several RPCs share."""

from datetime import UTC, datetime
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid

from spawnmesh_model_router.domain.cooldown import Audience
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome
from spawnmesh_model_router.domain.partial import PartialExecution
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.router_config import OPENAI_LIKE, Model, ProviderKind
from spawnmesh_model_router.domain.thinking import ThinkingLevel


def parse_partial_execution(partial: generation_pb2.PartialExecution) -> PartialExecution:
    return PartialExecution(tuple(partial.tool_names), partial.sent_to_person)


def parse_reason(reason: generation_pb2.FailoverReason.ValueType) -> FailoverReason | None:
    """Return the reason; None for UNSPECIFIED and for a value that this service does not know."""
    if reason not in generation_pb2.FailoverReason.values():
        return None
    name = generation_pb2.FailoverReason.Name(reason).removeprefix("FAILOVER_REASON_")
    return FailoverReason(name) if name in FailoverReason.__members__ else None


def render_verdict(model: str, outcome: Outcome) -> generation_pb2.CandidateVerdict:
    return generation_pb2.CandidateVerdict(
        model=model,
        verdict=generation_pb2.Verdict.Value(f"VERDICT_{outcome.kind}"),
        reason=render_reason(outcome.reason),
        detail=outcome.detail,
        images=render_images(outcome.images),
        thinking=render_thinking(outcome.thinking),
        cooling_until_time=timestamp_of(outcome.until),
        cooling_audience=render_audience(outcome.audience),
    )


def render_audience(audience: Audience | None) -> generation_pb2.CooldownAudience.ValueType:
    return generation_pb2.CooldownAudience.Value(
        f"COOLDOWN_AUDIENCE_{audience.value if audience else 'UNSPECIFIED'}"
    )


def render_thinking(level: ThinkingLevel | None) -> thinking_pb2.ThinkingLevel.ValueType:
    name = level.name if level is not None else "UNSPECIFIED"
    return thinking_pb2.ThinkingLevel.Value(f"THINKING_LEVEL_{name}")


def render_provider_kind(kind: ProviderKind) -> routing_pb2.ProviderKind.ValueType:
    return routing_pb2.ProviderKind.Value(f"PROVIDER_KIND_{kind.upper()}")


def render_api(model: Model, kind: ProviderKind) -> routing_pb2.ModelApi.ValueType:
    """Return the API by which the model is called; unspecified unless it is one of OpenAI's."""
    if kind not in OPENAI_LIKE:
        return routing_pb2.MODEL_API_UNSPECIFIED
    return routing_pb2.ModelApi.Value(f"MODEL_API_{(model.api or 'chat').upper()}")


def render_reason(reason: FailoverReason | None) -> generation_pb2.FailoverReason.ValueType:
    return generation_pb2.FailoverReason.Value(f"FAILOVER_REASON_{reason.value if reason else 'UNSPECIFIED'}")


def render_images(outcome: ImageOutcome) -> generation_pb2.ImageOutcome.ValueType:
    if outcome is ImageOutcome.NO_IMAGES:
        return generation_pb2.IMAGE_OUTCOME_UNSPECIFIED
    return generation_pb2.ImageOutcome.Value(f"IMAGE_OUTCOME_{outcome.value}")


def parse_time(
    request: pb.ListSpendRequest | pb.ListFailuresRequest, field: Literal["start_time", "end_time"]
) -> datetime | None:
    """Return the time; None for none. Raises MeshError INVALID_REQUEST."""
    if not request.HasField(field):
        return None
    time: Timestamp = getattr(request, field)
    try:
        return time.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is not a time") from None
