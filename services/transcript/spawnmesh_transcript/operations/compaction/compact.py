"""Compact a transcript: summarize what is no longer fresh.

The sources are read, plugins are asked, a model writes, and the summary is appended if the
transcript still is as it was. Nothing is locked meanwhile, and nothing is written before the one
transaction at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.clients.hooks import dispatch_before_compaction
from spawnmesh_transcript.domain.compaction import files_in, files_line, summary_limit, with_files
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.refusals import not_configured
from spawnmesh_transcript.domain.stale_results import TailLimits
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.compaction.plan import CompactionPlan, find_candidate, make_plan
from spawnmesh_transcript.operations.compaction.summarize import SummaryRequest, summarize
from spawnmesh_transcript.operations.compaction.summary_append import (
    AppendedSummary,
    CompactionRequester,
    append_summary,
)


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The requester, the tail that stays as it is, and the models to try in order.

    The model calls count in the budgets of the run `budget_run_id`; it is empty if they count in
    none. They are the spending of the agent of the run that asked, or of none.
    """

    requester: CompactionRequester
    fresh_tail: TailLimits
    models: Sequence[str]
    budget_run_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class CompactionRefusal:
    """The plugin that refused a compaction, and its reason."""

    plugin_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionOutcome:
    """The head, and a summary or a refusal; neither if there was too little to summarize."""

    head: Head
    summary: AppendedSummary | None = None
    refusal: CompactionRefusal | None = None


@dataclass(frozen=True, slots=True)
class Compactor:
    """The resources of the process that compactions use.

    `model_router` and `hooks` are None in a process without their targets.
    """

    database: Database
    threads: BulkThreads
    model_router: Peer | None
    hooks: Peer | None

    def peers(self) -> tuple[Peer, Peer]:
        """Return the model router and the hook service.

        Raises DEPENDENCY_UNAVAILABLE in a process that lacks a target.
        """
        return (
            _connected(self.model_router, "model router", "MODEL_ROUTER_TARGET"),
            _connected(self.hooks, "hook service", "HOOK_TARGET"),
        )

    async def compact(self, key: Key, request: CompactionRequest) -> CompactionOutcome:
        """Summarize the oldest entries that are not fresh, as many as one compaction can.

        Raises NOT_FOUND, WRITER_CLAIM_LOST, CONFLICT, DEPENDENCY_UNAVAILABLE, PLUGIN_FAILED, and
        the router's MeshError.
        """
        requester = request.requester
        candidate = await find_candidate(self.database, key, request.fresh_tail)
        requester.require_writer(candidate.head)
        if not candidate.end_seq:
            return CompactionOutcome(candidate.head)
        router, hooks = self.peers()
        plan = await make_plan(self.database, self.threads, key, candidate)
        judged = await dispatch_before_compaction(hooks, key.tenant_id, _before_event(key, requester, plan))
        if judged.decision.HasField("keep_whole"):
            refused_by = judged.decided_by[-1] if judged.decided_by else "a plugin"
            refusal = CompactionRefusal(refused_by, judged.decision.keep_whole.reason)
            return CompactionOutcome(candidate.head, refusal=refusal)
        count = partial(count_tokens, vocabulary=candidate.policy.token_vocabulary)
        files = files_line(
            [*files_in(plan.previous_text), *plan.file_ids],
            limit=summary_limit(plan.source_token_count),
            count=count,
        )
        wanted = SummaryRequest(
            models=request.models,
            source_token_count=plan.source_token_count,
            instructions=judged.decision.compact.instructions,
            reserved_token_count=count(files),
            count=count,
            budget_run_id=request.budget_run_id,
            agent_id=request.agent_id,
        )
        written = await summarize(router, self.threads, key, wanted, plan.previous_text, plan.sources)
        text = with_files(written.text, files)
        appended = await append_summary(self.database, key, requester, plan, written, text)
        return CompactionOutcome(appended.head, appended)


def _connected(peer: Peer | None, name: str, setting: str) -> Peer:
    if peer is None:
        raise not_configured(name, setting)
    return peer


def _before_event(
    key: Key, requester: CompactionRequester, plan: CompactionPlan
) -> hook_pb.BeforeCompactionEvent:
    return hook_pb.BeforeCompactionEvent(
        session_id=key.session_id,
        run_id=requester.claim.run_id if requester.claim else "",
        source_entry_count=len(plan.sources),
        source_token_count=plan.source_token_count,
        first_source_seq=plan.first_seq,
        last_source_seq=plan.last_seq,
        previous_summary=plan.previous_text,
    )
