"""Have a model write a summary, piece by piece: each call gets the summary so far and the next
piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.clients.model_router import generate_text, sum_of_usage
from spawnmesh_transcript.domain.compaction import (
    MAX_PIECES,
    Count,
    Source,
    SummaryMethod,
    excerpt,
    pieces,
    summary_limit,
)
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.compaction.prompt import system_prompt, user_prompt


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """A summary, how it was made, and the model that wrote it, empty if none did.

    `usage` covers all calls that were made for it.
    """

    text: str
    method: SummaryMethod
    model: str
    usage: content_pb.TokenUsage


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The models to try in order, the size of the sources, what plugins require, and a token
    counter.
    """

    models: Sequence[str]
    source_token_count: int
    instructions: str
    reserved_token_count: int
    """Tokens of the summary's limit to leave free."""
    count: Count
    budget_run_id: str = ""
    """The run in whose budgets the calls count; empty if in none."""
    agent_id: str = ""
    """The agent whose spending the calls are; empty if a client asked."""


async def summarize(
    router: Peer,
    threads: BulkThreads,
    key: Key,
    request: SummaryRequest,
    previous_summary: str,
    sources: Sequence[Source],
) -> WrittenSummary:
    """Return the sources and the summary before them as one summary within its limit.

    If a model's text is too long or empty, it is asked once more for a quarter. If that is too long
    or empty as well, if no model says anything, or if there are more than MAX_PIECES pieces, no
    model is asked any more: the rest of the sources and the summary so far are cut to an excerpt.
    Raises the router's MeshError.
    """
    limit = summary_limit(request.source_token_count) - request.reserved_token_count
    text, method, model, usage = previous_summary, SummaryMethod.NORMAL, "", content_pb.TokenUsage()
    remaining = pieces(sources)
    for _ in range(MAX_PIECES):
        if not remaining:
            break
        for attempt in (SummaryMethod.NORMAL, SummaryMethod.AGGRESSIVE):
            generated = await generate_text(
                router,
                key,
                request.models,
                system_prompt=system_prompt(
                    limit if attempt is SummaryMethod.NORMAL else limit // 4, request.instructions
                ),
                user_prompt=user_prompt(text, [source.line for source in remaining[0]]),
                budget_run_id=request.budget_run_id,
                agent_id=request.agent_id,
            )
            usage = sum_of_usage(usage, generated.usage)
            fits = 0 < await threads.run(key.tenant_id, partial(request.count, generated.text)) <= limit
            if fits or not generated.model:
                break
        if not fits:
            break
        text, model = generated.text, generated.model
        method = attempt if attempt is SummaryMethod.AGGRESSIVE else method
        del remaining[0]
    if not remaining:
        return WrittenSummary(text, method, model, usage)
    rest = [source for piece in remaining for source in piece]
    short = await threads.run(
        key.tenant_id, partial(excerpt, text, rest, max_token_count=limit, count=request.count)
    )
    return WrittenSummary(short, SummaryMethod.EXCERPT, "", usage)
