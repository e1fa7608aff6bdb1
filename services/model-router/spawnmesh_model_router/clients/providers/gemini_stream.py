"""Read the stream of Gemini's generateContent."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from google.genai.types import GenerateContentResponse, Part

from spawnmesh_model_router.clients.providers.gemini_request import THOUGHT_SIGNATURE
from spawnmesh_model_router.clients.providers.growing_call import new_call_id
from spawnmesh_model_router.clients.providers.growing_thought import GrowingThought
from spawnmesh_model_router.domain.answer import (
    Finished,
    PieceStream,
    ProviderFailed,
    StopReason,
    TextPiece,
    ToolCall,
    Usage,
    hidden_output,
    unreadable_tool_call,
)
from spawnmesh_model_router.domain.reasons import FailoverReason

_STOPS = {
    "STOP": StopReason.END,
    "MAX_TOKENS": StopReason.LENGTH,
    "SAFETY": StopReason.REFUSAL,
    "RECITATION": StopReason.REFUSAL,
    "BLOCKLIST": StopReason.REFUSAL,
    "PROHIBITED_CONTENT": StopReason.REFUSAL,
    "SPII": StopReason.REFUSAL,
    "IMAGE_SAFETY": StopReason.REFUSAL,
}
_UNREADABLE = "MALFORMED_FUNCTION_CALL"


async def read_generated(chunks: AsyncIterator[GenerateContentResponse]) -> PieceStream:
    """Yield text and thoughts in pieces, and calls, as they arrive; the complete thought before the
    end.

    A last call that was cut off is dropped. A stream without an end yields no `Finished`. Raises
    ProviderFailed for a blocked prompt, and for a call that the provider itself could not parse.
    """
    thought = GrowingThought()
    maybe_cut: ToolCall | None = None
    called = False
    reason = response_id = response_model = ""
    usage, reasoning = Usage(), 0
    async for chunk in chunks:
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
            raise ProviderFailed(FailoverReason.NO_FAILOVER, "the provider blocked the prompt")
        response_id, response_model = chunk.response_id or response_id, chunk.model_version or response_model
        if chunk.usage_metadata is not None:
            usage = _usage(chunk.usage_metadata)
            reasoning = chunk.usage_metadata.thoughts_token_count or 0
        for candidate in (chunk.candidates or [])[:1]:
            for part in (candidate.content.parts or []) if candidate.content is not None else []:
                if maybe_cut is not None:  # It was not the last part.
                    yield maybe_cut
                    maybe_cut = None
                if part.function_call is not None:
                    called = True
                    call = _call(part)
                    for report in hidden_output(call.block_json):
                        yield report
                    if part.function_call.args is None or part.function_call.will_continue:
                        maybe_cut = call
                    else:
                        yield call
                elif part.text and part.thought:
                    for piece in thought.grow(part.text):
                        yield piece
                elif part.text:
                    yield TextPiece(part.text)
            reason = candidate.finish_reason.value if candidate.finish_reason is not None else reason
    if reason == _UNREADABLE:
        raise unreadable_tool_call()
    if reason:
        stop = _STOPS.get(reason, StopReason.UNSPECIFIED)
        if maybe_cut is not None and stop.is_chosen_by_model:
            yield maybe_cut
        for block in thought.finish():
            yield block
        yield Finished(
            StopReason.TOOL_USE if called and stop is StopReason.END else stop,
            usage,
            response_id,
            response_model,
            reasoning,
        )


def _call(part: Part) -> ToolCall:
    """Return the call with the signature of its thought, which the provider wants back."""
    call: Any = part.function_call
    call_id = call.id or new_call_id()
    block = {"type": "functionCall", "id": call_id, "name": call.name, "args": call.args or {}}
    if part.thought_signature:
        block[THOUGHT_SIGNATURE] = b64encode(part.thought_signature).decode()
    return ToolCall(call_id, call.name or "", json.dumps(block, ensure_ascii=False))


def _usage(reported: Any) -> Usage:
    """Return the usage. Thinking counts as output."""
    return Usage(
        input=reported.prompt_token_count or 0,
        output=(reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0),
        cache_read=reported.cached_content_token_count or 0,
    )
