"""One span for each attempt, with no word of what was asked or answered.

A span is handed on by hand and never made current: its block yields, and a current span left behind by a generator ends in the wrong place.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from spawnmesh_model_router.config import ProviderKind
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.providers.answer import Finished, ProviderFailed


def start_chat_span(tracer: Tracer, model: ModelRef, kind: ProviderKind, number: int, session_id: str) -> Span:
    """A child of the span of the call being served. The caller ends it."""
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
    """Adds what the provider said about its answer."""
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
    """Adds why the attempt failed."""
    span.set_attribute("spawnmesh.failover.reason", failed.reason.value)
    span.set_attribute("error.type", failed.reason.value)
    if failed.http_status:
        span.set_attribute("http.response.status_code", failed.http_status)
    span.set_status(Status(StatusCode.ERROR))
