"""Has a model write a summary: a piece of the sources at a time, each summary made from the one before and the next piece."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.domain.compaction import (
    MAX_PIECES,
    Count,
    Method,
    Source,
    excerpt,
    pieces,
    summary_limit,
)
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.summary_prompt import system_prompt, user_prompt

if TYPE_CHECKING:  # The stubs' types for asyncio exist for type checkers only.
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub

_GENERATE_SECONDS = 180.0
_MAX_OUTPUT_TOKENS = 8_192  # Far more than a summary may have: models that think count their thoughts.


@dataclass(frozen=True, slots=True)
class Written:
    """A summary, how it was made, and the model that wrote it, empty where none did; `usage` is of all the calls that were made for it."""

    text: str
    method: Method
    model: str
    usage: content_pb.TokenUsage


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: which models in their order, how much the sources have, what plugins want to be kept, and how tokens are counted."""

    models: Sequence[str]
    source_token_count: int
    instructions: str
    reserved_token_count: int
    """Tokens that are to be left of what a summary may have."""
    count: Count


async def summarize(
    router: Peer, key: Key, question: Question, previous_summary: str, sources: Sequence[Source]
) -> Written:
    """The sources and the summary before them as one summary, no longer than it may be.

    Where a model's answer is too long or empty it is asked once more for far less. Where that is, too, or there are more than MAX_PIECES, since
    a call stands that far before its results, nobody is asked any more: what is left, and the summary so far, are cut short. Raises the
    MeshError of the router.
    """
    limit = summary_limit(question.source_token_count) - question.reserved_token_count
    text, method, model, used = previous_summary, Method.NORMAL, "", content_pb.TokenUsage()
    waiting = pieces(sources)
    for _ in range(MAX_PIECES):
        if not waiting:
            break
        for tried in (Method.NORMAL, Method.AGGRESSIVE):
            answer = await _answer(router, key, question, tried, text, waiting[0], limit)
            used = _both(used, answer.usage)
            if 0 < await asyncio.to_thread(question.count, answer.text) <= limit:
                break
        else:
            break
        text, model = answer.text, answer.model
        method = tried if tried is Method.AGGRESSIVE else method
        del waiting[0]
    if not waiting:
        return Written(text, method, model, used)
    rest = [source for piece in waiting for source in piece]
    short = await asyncio.to_thread(excerpt, text, rest, max_token_count=limit, count=question.count)
    return Written(short, Method.EXCERPT, "", used)


async def _answer(
    router: Peer, key: Key, question: Question, method: Method, summary: str, piece: Sequence[Source], limit: int
) -> Written:
    """What a model says to one piece; no text where it did not say all, or refused."""
    first, *others = question.models or [""]
    prompt = user_prompt(summary, [source.line for source in piece])
    block = content_pb.ContentBlock(text=content_pb.Text(text=prompt))
    request = router_pb.GenerateRequest(
        model=first,
        fallbacks=router_pb.Fallbacks(models=others) if question.models else None,
        system_prompt=system_prompt(limit if method is Method.NORMAL else limit // 4, question.instructions),
        messages=[content_pb.Message(role=content_pb.ROLE_USER, content=[block])],
        max_output_token_count=_MAX_OUTPUT_TOKENS,
        session_id=key.session_id,
    )
    models: ModelRouterServiceAsyncStub = ModelRouterServiceStub(router.channel)
    completion: generation_pb2.Completion | None = None
    with acting_for(key.tenant_id):
        async with aclosing(router.stream(models.Generate, request, timeout_seconds=_GENERATE_SECONDS)) as answers:
            async for answer in answers:
                for event in answer.events:
                    if event.HasField("completion"):
                        completion = event.completion
    if completion is None:
        raise MeshError(Reason.STREAM_BROKEN, "the summary ended before it was whole")
    is_whole = completion.stop_reason in (generation_pb2.STOP_REASON_END, generation_pb2.STOP_REASON_UNSPECIFIED)
    said = "".join(block.text.text for block in completion.message.content if block.HasField("text")).strip()
    return Written(said if is_whole else "", method, completion.message.model, completion.message.usage)


def _both(one: content_pb.TokenUsage, other: content_pb.TokenUsage) -> content_pb.TokenUsage:
    return content_pb.TokenUsage(
        input_token_count=one.input_token_count + other.input_token_count,
        output_token_count=one.output_token_count + other.output_token_count,
        cache_read_token_count=one.cache_read_token_count + other.cache_read_token_count,
        cache_write_token_count=one.cache_write_token_count + other.cache_write_token_count,
    )
