"""The arguments and the result of a tool call in its span, if the operator and the tenant want
them.
"""

import asyncio
from collections.abc import Callable

from opentelemetry.trace import Span
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2
from spawnmesh_core.span_content import SpanContent

_ARGUMENTS = "gen_ai.tool.call.arguments"
_RESULT = "gen_ai.tool.call.result"
_THREAD_CHARS = 16 * 1024  # Masking more characters takes several milliseconds.


def span_content(max_bytes: int, claimed: run_service_pb2.ClaimedRun) -> SpanContent | None:
    """Return what renders the content of the run's tool calls; None if its spans have none."""
    return SpanContent(max_bytes) if max_bytes and claimed.trace_content else None


async def record_arguments(span: Span, content: SpanContent | None, call: message_pb2.ToolCall) -> None:
    """Record the arguments of the call as it is made."""
    if content is not None:
        block = call.block_json
        await _record(span, _ARGUMENTS, lambda: content.arguments(call.name, block), len(block))


async def record_result(span: Span, content: SpanContent | None, text: str) -> None:
    """Record the text that the model reads."""
    if content is not None:
        await _record(span, _RESULT, lambda: content.text(text), len(text))


async def _record(span: Span, name: str, render: Callable[[], str], char_count: int) -> None:
    if span.is_recording():
        is_large = char_count > _THREAD_CHARS
        span.set_attribute(name, await asyncio.to_thread(render) if is_large else render())
