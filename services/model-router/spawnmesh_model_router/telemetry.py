"""Spans of attempts, without any content of the request or the answer.

A span is passed as an argument and never made current. A generator cannot reset the current span in
the right place.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from spawnmesh_model_router.domain.answer import Finished, ProviderFailed
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.router_config import ProviderKind


def start_chat_span(
    tracer: Tracer, model: ModelRef, kind: ProviderKind, number: int, session_id: str
) -> Span:
    """Start a child of the span of the current RPC. The caller ends it."""
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.provider if kind == "openai_compatible" else kind,
        "gen_ai.request.model": model.model,
        "spawnmesh.attempt": number,
    }
    if session_id:
        attributes["gen_ai.conversation.id"] = session_id
    return tracer.start_span(f"chat {model.model}", kind=SpanKind.CLIENT, attributes=attributes)


def mark_answered(span: Span, finished: Finished) -> None:
    """Add what the provider reported about its answer."""
    usage = finished.usage
    span.set_attributes(
        {
            "gen_ai.response.id": finished.response_id,
            "gen_ai.response.model": finished.response_model,
            "gen_ai.response.finish_reasons": (finished.stop.value.removeprefix("STOP_REASON_").lower(),),
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        }
    )


def mark_failed(span: Span, failed: ProviderFailed) -> None:
    """Add the reason of the failure."""
    span.set_attribute("spawnmesh.failover.reason", failed.reason.value)
    span.set_attribute("error.type", failed.reason.value)
    if failed.http_status:
        span.set_attribute("http.response.status_code", failed.http_status)
    span.set_status(Status(StatusCode.ERROR))
