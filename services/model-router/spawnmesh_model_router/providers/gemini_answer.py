"""Reads the stream of Gemini's generateContent."""

import json
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from google.genai.types import GenerateContentResponse, Part

from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.providers.answer import (
    Call,
    Finished,
    Pieces,
    ProviderFailed,
    Stop,
    TextPiece,
    Thought,
    Usage,
    unreadable_call,
    unseen,
)
from spawnmesh_model_router.providers.gemini_request import THOUGHT_SIGNATURE

_STOPS = {
    "STOP": Stop.END,
    "MAX_TOKENS": Stop.LENGTH,
    "SAFETY": Stop.REFUSAL,
    "RECITATION": Stop.REFUSAL,
    "BLOCKLIST": Stop.REFUSAL,
    "PROHIBITED_CONTENT": Stop.REFUSAL,
    "SPII": Stop.REFUSAL,
    "IMAGE_SAFETY": Stop.REFUSAL,
}
_UNREADABLE = "MALFORMED_FUNCTION_CALL"


async def read_generated(chunks: AsyncIterator[GenerateContentResponse]) -> Pieces:
    """Text and calls as they come, the thoughts before the end; not a last call that was cut off. No `Finished` for a stream that just ends.

    Raises ProviderFailed for a prompt that was blocked, and for a call that the provider could not read itself.
    """
    thoughts: list[str] = []
    doubtful: Call | None = None
    called = False
    reason = response_id = response_model = ""
    usage = Usage()
    async for chunk in chunks:
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
            raise ProviderFailed(FailoverReason.NO_FAILOVER, "the provider blocked the prompt")
        response_id, response_model = chunk.response_id or response_id, chunk.model_version or response_model
        if chunk.usage_metadata is not None:
            usage = _usage(chunk.usage_metadata)
        for candidate in (chunk.candidates or [])[:1]:
            for part in (candidate.content.parts or []) if candidate.content is not None else []:
                if doubtful is not None:  # Not the last part.
                    yield doubtful
                    doubtful = None
                if part.function_call is not None:
                    called = True
                    call = _call(part)
                    for report in unseen(call.block_json):
                        yield report
                    if part.function_call.args is None or part.function_call.will_continue:
                        doubtful = call
                    else:
                        yield call
                elif part.text and part.thought:
                    thoughts.append(part.text)
                    for report in unseen(part.text):
                        yield report
                elif part.text:
                    yield TextPiece(part.text)
            reason = candidate.finish_reason.value if candidate.finish_reason is not None else reason
    if reason == _UNREADABLE:
        raise unreadable_call()
    if reason:
        stop = _STOPS.get(reason, Stop.UNSPECIFIED)
        if doubtful is not None and stop.is_models_own:
            yield doubtful
        if thoughts:
            yield Thought("".join(thoughts), "")
        yield Finished(Stop.TOOL_USE if called and stop is Stop.END else stop, usage, response_id, response_model)


def _call(part: Part) -> Call:
    """The call with the signature of the thought that led to it, which the provider wants back."""
    call: Any = part.function_call
    call_id = call.id or f"call_{secrets.token_hex(12)}"
    block = {"type": "functionCall", "id": call_id, "name": call.name, "args": call.args or {}}
    if part.thought_signature:
        block[THOUGHT_SIGNATURE] = b64encode(part.thought_signature).decode()
    return Call(call_id, call.name or "", json.dumps(block, ensure_ascii=False))


def _usage(said: Any) -> Usage:
    """Thinking is written too."""
    return Usage(
        input=said.prompt_token_count or 0,
        output=(said.candidates_token_count or 0) + (said.thoughts_token_count or 0),
        cache_read=said.cached_content_token_count or 0,
    )
