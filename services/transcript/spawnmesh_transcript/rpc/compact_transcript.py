"""CompactTranscript: summarize what is no longer fresh.

The sources are read, plugins are asked, a model writes, and the summary is appended if the
transcript still is as it was. Nothing is locked meanwhile, and nothing is written before the one
transaction at the end.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.clients.hooks import dispatch_before_compaction
from spawnmesh_transcript.domain.compaction import files_in, files_line, summary_limit, with_files
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.refusals import (
    compacted_meanwhile,
    is_being_written,
    not_configured,
    require_current,
    run_without_claim,
)
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.bodies.masking import masked_body
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.compaction.plan import CompactionPlan, find_candidate, make_plan
from spawnmesh_transcript.operations.compaction.summarize import SummaryRequest, WrittenSummary, summarize
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, parse_tail, render_entry, render_head
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store.summaries import Summary

_UNRECORDED = (Reason.NOT_FOUND, Reason.WRITER_CLAIM_LOST, Reason.CONFLICT)
"""Refusals: they are no failures of a compaction."""


@dataclass(frozen=True, slots=True)
class _Requester:
    """The run that asks for a compaction, by its claim, or the client, by its name."""

    claim: WriterClaim | None
    client: str


async def compact_transcript(
    request: pb.CompactTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.CompactTranscriptResponse:
    """Summarize the oldest entries that are not fresh, as many as one compaction can.

    The response has a summary, the refusal of a plugin, or neither if there is too little to
    summarize. Raises NOT_FOUND, WRITER_CLAIM_LOST, CONFLICT if another run writes the transcript or
    another compaction was first, DEPENDENCY_UNAVAILABLE, PLUGIN_FAILED, and the router's MeshError.
    """
    key = parse_key(request.session_id, caller)
    requester = _parse_requester(request, caller)
    try:
        return await _compact(request, key, requester, deps)
    except (MeshError, asyncio.CancelledError) as error:
        reason = error.reason if isinstance(error, MeshError) else Reason.CANCELLED
        if reason not in _UNRECORDED:
            failed = activity_pb.Failed(action="compact", reason=reason)
            deps.activities.record_later(key, activity_pb.Activity(failed=failed))
            deps.compaction_metrics.compacted(outcome="failed")
        raise


def _parse_requester(request: pb.CompactTranscriptRequest, caller: Caller) -> _Requester:
    if request.HasField("claim"):
        return _Requester(parse_claim(request.claim, caller), "")
    if caller.kind is CallerKind.RUN:
        raise run_without_claim()
    return _Requester(None, caller.subject)


async def _compact(
    request: pb.CompactTranscriptRequest, key: Key, requester: _Requester, deps: Dependencies
) -> pb.CompactTranscriptResponse:
    candidate = await find_candidate(deps.database, key, parse_tail(request.fresh_tail))
    _require_writer(candidate.head, requester)
    if not candidate.end_seq:
        deps.compaction_metrics.compacted(outcome="nothing")
        return pb.CompactTranscriptResponse(head=render_head(candidate.head))
    router = _connected(deps.model_router, "model router", "MODEL_ROUTER_TARGET")
    hooks = _connected(deps.hooks, "hook service", "HOOK_TARGET")
    plan = await make_plan(deps.database, key, candidate)
    judged = await dispatch_before_compaction(hooks, key.tenant_id, _before_event(key, requester, plan))
    if judged.decision.HasField("keep_whole"):
        refused_by = judged.decided_by[-1] if judged.decided_by else "a plugin"
        deps.compaction_metrics.compacted(outcome="refused")
        return pb.CompactTranscriptResponse(
            refused_by=refused_by,
            refusal=judged.decision.keep_whole.reason,
            head=render_head(candidate.head),
        )
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
    )
    written = await summarize(router, key, wanted, plan.previous_text, plan.sources)
    head, entry, sources = await _append(deps, key, requester, plan, written, with_files(written.text, files))
    deps.notifier.transcript_changed(key)
    activity = activity_pb.Compacted(entry_id=entry.entry_id, sources=sources, token_count=entry.token_count)
    deps.activities.record_later(key, activity_pb.Activity(compacted=activity))
    deps.compaction_metrics.compacted(outcome="compacted", method=written.method.lower())
    response = pb.CompactTranscriptResponse(head=render_head(head))
    render_entry(entry, response.summary)
    return response


async def _append(
    deps: Dependencies,
    key: Key,
    requester: _Requester,
    plan: CompactionPlan,
    written: WrittenSummary,
    text: str,
) -> tuple[Head, StoredEntry, entry_pb.SummarySources]:
    """Append the summary, if the transcript has the writer and the newest summary of the plan."""
    entry_id = new_id(IdKind.ENTRY)
    previous = plan.candidate.previous
    sources = entry_pb.SummarySources(
        first_seq=plan.first_seq,
        last_seq=plan.last_seq,
        entry_count=len(plan.sources),
        previous_entry_id=previous.entry_id if previous else "",
        token_count=plan.source_token_count,
        method=entry_pb.SummaryMethod.Value(f"SUMMARY_METHOD_{written.method}"),
        model=written.model,
        usage=written.usage,
    )
    body = entry_pb.EntryBody(compaction=entry_pb.Compaction(summary=text, sources=sources))
    async with deps.database.transaction(key.tenant_id) as connection:
        await planner.keep_index_order(connection)
        await _lock_unchanged(connection, key, requester, plan)
        # Minutes after the plan.
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if policy.mask_secrets:
            body = masked_body(body, "summary")
        vocabulary = policy.token_vocabulary
        token_count = count_tokens(body.compaction.summary, vocabulary)
        kept = await summary_store.read_kept(connection, key, after_seq=plan.last_seq)
        body.compaction.first_kept_entry_id = kept.first_entry_id
        body.compaction.token_count_before = plan.source_token_count + kept.token_count
        body.compaction.token_count_after = token_count + kept.token_count
        entry = NewEntry(
            EntryKind.COMPACTION,
            serialize(body),
            entry_id=entry_id,
            target_entry_id=kept.first_entry_id,
            token_vocabulary=vocabulary,
        )
        head = await summary_store.append_summary(
            connection, key, entry, claim=requester.claim, client=requester.client
        )
        summary = Summary(
            seq=head.seq,
            entry_id=entry_id,
            first_source_seq=plan.first_seq,
            last_source_seq=plan.last_seq,
            previous_seq=previous.seq if previous else None,
            source_entry_count=len(plan.sources),
            source_token_count=plan.source_token_count,
            covered_turn_count=(previous.covered_turn_count if previous else 0) + len(plan.covered),
            covered_token_count=kept.covered_token_count,
            token_count=token_count,
            method=written.method,
            model=written.model,
            run_id=requester.claim.run_id if requester.claim else "",
        )
        await summary_store.insert_summary(connection, key, summary)
        [stored] = await entry_store.read_entries(connection, key, [head.seq])
    return head, stored._replace(token_count=token_count), sources


async def _lock_unchanged(
    connection: Connection, key: Key, requester: _Requester, plan: CompactionPlan
) -> None:
    """Lock the transcript until the transaction ends.

    Raises NOT_FOUND, WRITER_CLAIM_LOST and CONFLICT if it is not as it was when the plan was made.
    """
    head = await summary_store.lock_transcript(connection, key)
    if head is None or head.incarnation != plan.candidate.head.incarnation:
        raise not_found("transcript", key.session_id)
    _require_writer(head, requester)
    newest, previous = await summary_store.read_newest_summary(connection, key), plan.candidate.previous
    if (newest and newest.seq) != (previous and previous.seq):
        raise compacted_meanwhile()


def _require_writer(head: Head, requester: _Requester) -> None:
    if requester.claim is not None:
        require_current(requester.claim, head)
    elif head.writer_run_id:
        raise is_being_written()


def _before_event(key: Key, requester: _Requester, plan: CompactionPlan) -> hook_pb.BeforeCompactionEvent:
    return hook_pb.BeforeCompactionEvent(
        session_id=key.session_id,
        run_id=requester.claim.run_id if requester.claim else "",
        source_entry_count=len(plan.sources),
        source_token_count=plan.source_token_count,
        first_source_seq=plan.first_seq,
        last_source_seq=plan.last_seq,
        previous_summary=plan.previous_text,
    )


def _connected(peer: Peer | None, name: str, setting: str) -> Peer:
    if peer is None:
        raise not_configured(name, setting)
    return peer
