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


def provider_name(name: str, provider: Provider) -> str:
    """Return the name of the provider in the conventions of OpenTelemetry.

    One of the kind `openai_compatible` has the operator's name for it.
    """
    return _PROVIDERS.get(provider.kind, name)


def start_chat_span(
    tracer: Tracer, model: ModelRef, provider: Provider, number: int, max_output: int, session_id: str
) -> Span:
    """Start a child of the span of the current RPC. The caller ends it.

    A `max_output` of 0 means that the caller gives none.
    """
    attributes: dict[str, str | int | bool] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_name(model.provider, provider),
        "gen_ai.request.model": model.model,
        "gen_ai.request.stream": True,
        "spawnmesh.attempt": number,
    }
    if provider.base_url is not None:
        address = urlsplit(provider.base_url)
        attributes["server.address"] = address.hostname or ""
        attributes["server.port"] = address.port or _PORTS[address.scheme]
    if max_output:
        attributes["gen_ai.request.max_tokens"] = max_output
    if session_id:
        attributes["gen_ai.conversation.id"] = session_id
    return tracer.start_span(f"chat {model.model}", kind=SpanKind.CLIENT, attributes=attributes)


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
    if finished.reasoning_tokens:
        reasoning = min(finished.reasoning_tokens, usage.output)
        span.set_attribute("gen_ai.usage.reasoning.output_tokens", reasoning)


def mark_cost(span: Span, cost_micros: int) -> None:
    """Add what the answer cost, in millionths of the currency of the prices."""
    span.set_attribute("spawnmesh.model_router.cost", cost_micros)


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
