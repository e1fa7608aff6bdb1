"""Spans of attempts, without any content of the request or the answer.

A span is passed as an argument and never made current. A generator cannot reset the current span in
the right place.
"""

from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from spawnmesh_model_router.domain.answer import Finished, ProviderFailed, StopReason
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.router_config import Provider

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "gcp.gemini"}
"""The names of kinds of providers in the conventions of OpenTelemetry."""
_FINISH_REASONS = {
    StopReason.END: "stop",
    StopReason.TOOL_USE: "tool_call",
    StopReason.LENGTH: "length",
    StopReason.REFUSAL: "content_filter",
}
_PORTS = {"http": 80, "https": 443}

Attributes = dict[str, str | int | bool]


def chat_attributes(model: ModelRef, provider: Provider) -> Attributes:
    """Return what the spans and the metrics of calls of the model have in common.

    A provider of the kind `openai_compatible` has the operator's name for it.
    """
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(provider.kind, model.provider),
        "gen_ai.request.model": model.model,
    }
    if provider.base_url is not None:
        address = urlsplit(provider.base_url)
        attributes["server.address"] = address.hostname or ""
        attributes["server.port"] = address.port or _PORTS[address.scheme]
    return attributes


def start_chat_span(
    tracer: Tracer, common: Attributes, number: int, max_output: int, session_id: str
) -> Span:
    """Start a child of the span of the current RPC. The caller ends it.

    `common` are the `chat_attributes`. A `max_output` of 0 means that the caller gives none.
    """
    attributes = {**common, "gen_ai.request.stream": True, "spawnmesh.attempt": number}
    if max_output:
        attributes["gen_ai.request.max_tokens"] = max_output
    if session_id:
        attributes["gen_ai.conversation.id"] = session_id
    name = f"chat {common['gen_ai.request.model']}"
    return tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)


def mark_first_output(span: Span, seconds: float) -> None:
    """Add the time from the call to the first output, thoughts included."""
    span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)


def mark_answered(span: Span, finished: Finished) -> None:
    """Add what the provider reported about its answer."""
    usage = finished.usage
    span.set_attribute("gen_ai.response.finish_reasons", (finish_reason_of(finished),))
    if finished.response_id:
        span.set_attribute("gen_ai.response.id", finished.response_id)
    if finished.response_model:
        span.set_attribute("gen_ai.response.model", finished.response_model)
    span.set_attributes(
        {
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        }
    )


def finish_reason_of(finished: Finished) -> str:
    """Return the reason of the end in the words of the conventions; `unknown` if there is none."""
    return _FINISH_REASONS.get(finished.stop, "unknown")


def mark_failed(span: Span, failed: ProviderFailed) -> None:
    """Add the reason of the failure."""
    span.set_attribute("spawnmesh.failover.reason", failed.reason.value)
    span.set_attribute("error.type", failed.reason.value)
    if failed.http_status:
        span.set_attribute("http.response.status_code", failed.http_status)
    span.set_status(Status(StatusCode.ERROR))
