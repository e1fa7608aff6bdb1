"""Requests as values."""

import math
import re
from collections.abc import Iterable

from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_model_router.ask import Ask, Earlier
from spawnmesh_model_router.config import RouterConfig
from spawnmesh_model_router.domain.candidates import parse_ref
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.partial import FailedAttempt, PartialExecution, carry_over, merge
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy
from spawnmesh_model_router.domain.reasons import FailoverReason, ModelFailure
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.providers.question import Question, Shown, parse_tools

_MIME_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}")


def parse_ask(
    request: pb.GenerateRequest,
    caller: Caller,
    now: float,
    remaining_seconds: float | None,
    config: RouterConfig,
    policy: TenantPolicy,
) -> Ask:
    """What the caller wants; `now` is on the monotonic clock.

    Raises MeshError INVALID_REQUEST, and NOT_FOUND for a run that names another session.
    """
    session_id = request.session_id
    if caller.kind is CallerKind.RUN:
        if session_id not in ("", caller.session_id):
            raise not_found("session", session_id)
        session_id = caller.session_id
    _check_images(request)
    only_named = request.HasField("fallbacks")
    if only_named and request.fallback_models:
        raise invalid("fallbacks", "and fallback_models cannot be given both")
    return Ask(
        model=request.model.strip(),
        fallback_models=tuple(request.fallbacks.models if only_named else request.fallback_models),
        only_named=only_named,
        strict=request.strict,
        question=Question(
            system_prompt=request.system_prompt,
            messages=tuple(request.messages),
            tools=parse_tools(request.tools),
            max_output=request.max_output_token_count,
            thinking=_thinking(request.thinking),
        ),
        named_images=tuple(Shown(named.name, named.image) for named in request.named_images),
        session_id=session_id,
        deadline=math.inf if remaining_seconds is None else now + remaining_seconds,
        earlier=_earlier(request, config),
        blind_model_policy=policy.blind_model_policy or config.blind_model_policy,
        policy=policy,
    )


def _check_images(request: pb.GenerateRequest) -> None:
    """A type goes to the provider as it is, and back in what it says of it: it is no place for sentences."""
    for place, message in enumerate(request.messages):
        for number, block in enumerate(message.content):
            if block.HasField("image"):
                _check_type(f"messages[{place}].content[{number}].image.mime_type", block.image)
    for place, named in enumerate(request.named_images):
        _check_type(f"named_images[{place}].image.mime_type", named.image)


def _check_type(field: str, image: message_pb2.Image) -> None:
    if _MIME_TYPE.fullmatch(image.mime_type) is None:
        raise invalid(field, "must be a type and a subtype, as image/png is")


def _thinking(level: thinking_pb2.ThinkingLevel.ValueType) -> ThinkingLevel | None:
    if not level:
        return None
    return ThinkingLevel[thinking_pb2.ThinkingLevel.Name(level).removeprefix("THINKING_LEVEL_")]


def _earlier(request: pb.GenerateRequest, config: RouterConfig) -> Earlier:
    attempts = [
        FailedAttempt(parse_reason(attempt.reason) or FailoverReason.UNKNOWN, parse_partial(attempt.partial_execution))
        for attempt in request.earlier_attempts
    ]
    known = carry_over(attempts)
    first = parse_ref(request.earlier_attempts[0].model, config.lowered_aliases) if attempts else None
    return Earlier(
        is_retry=bool(attempts),
        first_provider=first.provider if first is not None else "",
        previous_reason=known.previous_reason,
        done=merge([known.partial, parse_partial(request.partial_execution)]),
    )


def parse_partial(partial: generation_pb2.PartialExecution) -> PartialExecution:
    """What was done, as it was given."""
    return PartialExecution(tuple(partial.tool_names), partial.sent_to_person)


def parse_partials(partials: Iterable[generation_pb2.PartialExecution]) -> PartialExecution | None:
    """What was done in all; None for nothing."""
    return merge(map(parse_partial, partials))


def parse_reason(reason: generation_pb2.FailoverReason.ValueType) -> FailoverReason | None:
    """The reason; None for none and for one that is newer than this service."""
    if reason not in generation_pb2.FailoverReason.values():
        return None
    name = generation_pb2.FailoverReason.Name(reason).removeprefix("FAILOVER_REASON_")
    return FailoverReason(name) if name in FailoverReason.__members__ else None


def parse_failure(request: pb.ClassifyErrorRequest) -> ModelFailure:
    """The failure that is to be judged."""
    return ModelFailure(
        status=request.http_status or None,
        message=request.message,
        code=request.code,
        error_type=request.error_type,
        provider=request.provider,
        details=tuple(request.details),
        cause_messages=tuple(request.causes),
    )


def parse_policy(policy: routing_pb2.RoutingPolicy) -> TenantPolicy:
    """What the tenant chose."""
    chosen = routing_pb2.BlindModelPolicy.Name(policy.blind_model_policy).removeprefix("BLIND_MODEL_POLICY_")
    return TenantPolicy(
        blind_model_policy=BlindModelPolicy(chosen) if chosen in BlindModelPolicy.__members__ else None,
        stop_after_side_effects=policy.stop_after_side_effects,
        max_tries=policy.max_try_count,
        limits=Limits(policy.max_requests_per_minute, policy.max_tokens_per_minute, policy.max_spend_micros_per_day),
    )
