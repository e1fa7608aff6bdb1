"""Compaction: what is no longer fresh is read, plugins are asked, a model writes, and the summary is appended if what it stands on is still so.

Nothing is locked meanwhile, and nothing is written before the one transaction at the end.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript import store, summary_store, tenant_store
from spawnmesh_transcript.activities import Activities
from spawnmesh_transcript.announcements import Announcements
from spawnmesh_transcript.bodies import serialize
from spawnmesh_transcript.compaction_plan import Plan, find_stale, make_plan
from spawnmesh_transcript.domain.compaction import files_in, files_line, summary_limit, with_files
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.refusals import claim_lost, compacted_meanwhile, is_being_written
from spawnmesh_transcript.domain.tier import TailLimits
from spawnmesh_transcript.masking import masked_body
from spawnmesh_transcript.metrics import CompactionMetrics
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.summarizing import Question, Written, summarize
from spawnmesh_transcript.summary_store import Summary
from spawnmesh_transcript.tokens import count_tokens

_HOOK_SECONDS = 600.0
_REFUSALS = (Reason.NOT_FOUND, Reason.WRITER_CLAIM_LOST, Reason.CONFLICT)


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for a compaction: a run by its claim, or a client by its name."""

    claim: WriterClaim | None
    client: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """What came of it: a summary, a plugin's refusal, or neither, where there was nothing to summarize."""

    head: Head
    summary: StoredEntry | None = None
    refused_by: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Compactor:
    """What compactions are made with. `router` and `hooks` are None in a service that was not told where they are."""

    database: Database
    router: Peer | None
    hooks: Peer | None
    activities: Activities
    announcements: Announcements
    metrics: CompactionMetrics

    async def compact(self, key: Key, asking: Asking, models: Sequence[str], tail: TailLimits) -> Compacted:
        """Summarizes what is not fresh, as far as one compaction goes.

        Raises NOT_FOUND, WRITER_CLAIM_LOST, CONFLICT while a run writes that does not ask, or where another compaction was first,
        DEPENDENCY_UNAVAILABLE, PLUGIN_FAILED, and the MeshError of the router.
        """
        try:
            done = await self._compact(key, asking, models, tail)
        except (MeshError, asyncio.CancelledError) as error:
            reason = error.reason if isinstance(error, MeshError) else Reason.CANCELLED
            if reason in _REFUSALS:
                raise
            failed = activity_pb.Failed(action="compact", reason=reason)
            self.activities.record_later(key, activity_pb.Activity(failed=failed))
            self.metrics.compacted(outcome="failed")
            raise
        if done.summary is None:
            self.metrics.compacted(outcome="refused" if done.refused_by else "nothing")
        return done

    async def _compact(self, key: Key, asking: Asking, models: Sequence[str], tail: TailLimits) -> Compacted:
        stale = await find_stale(self.database, key, tail)
        _require_writer(stale.head, asking)
        if not stale.end_seq:
            return Compacted(stale.head)
        router, hooks = _reach(self.router, "model-router"), _reach(self.hooks, "hook")
        plan = await make_plan(self.database, key, stale)
        judged = await _judge(hooks, key, asking, plan)
        if judged.decision.HasField("keep_whole"):
            refused_by = judged.decided_by[-1] if judged.decided_by else "a plugin"
            return Compacted(stale.head, refused_by=refused_by, refusal=judged.decision.keep_whole.reason)
        count = partial(count_tokens, vocabulary=stale.policy.token_vocabulary)
        files = files_line(
            [*files_in(plan.previous_text), *plan.file_ids],
            limit=summary_limit(plan.source_token_count),
            count=count,
        )
        question = Question(
            models=models,
            source_token_count=plan.source_token_count,
            instructions=judged.decision.compact.instructions,
            reserved_token_count=count(files),
            count=count,
        )
        written = await summarize(router, key, question, plan.previous_text, plan.sources)
        text = with_files(written.text, files)
        head, entry, sources = await self._append(key, asking, plan, written, text)
        self.announcements.changed(key)
        told = activity_pb.Compacted(entry_id=entry.entry_id, sources=sources, token_count=entry.token_count)
        self.activities.record_later(key, activity_pb.Activity(compacted=told))
        self.metrics.compacted(outcome="compacted", method=written.method.lower())
        return Compacted(head, entry)

    async def _append(
        self, key: Key, asking: Asking, plan: Plan, written: Written, text: str
    ) -> tuple[Head, StoredEntry, pb.SummarySources]:
        entry_id = new_id(IdKind.ENTRY)
        previous = plan.stale.previous
        sources = pb.SummarySources(
            first_seq=plan.first_seq,
            last_seq=plan.last_seq,
            entry_count=len(plan.sources),
            previous_entry_id=previous.entry_id if previous else "",
            token_count=plan.source_token_count,
            method=pb.SummaryMethod.Value(f"SUMMARY_METHOD_{written.method}"),
            model=written.model,
            usage=written.usage,
        )
        body = pb.EntryBody(compaction=pb.Compaction(summary=text, sources=sources))
        async with self.database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            await _lock_unchanged(connection, key, asking, plan)
            policy = await tenant_store.read_policy(connection, key.tenant_id)  # Not that of minutes ago.
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
            head = await summary_store.append_summary(connection, key, entry, claim=asking.claim, client=asking.client)
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
                run_id=asking.claim.run_id if asking.claim else "",
            )
            await summary_store.insert_summary(connection, key, summary)
            [stored] = await store.read_entries(connection, key, [head.seq])
        return head, stored._replace(token_count=token_count), sources


async def _lock_unchanged(connection: Connection, key: Key, asking: Asking, plan: Plan) -> None:
    """Holds the transcript until the transaction ends. Raises NOT_FOUND, WRITER_CLAIM_LOST and CONFLICT where it is not as it was."""
    head = await summary_store.lock_transcript(connection, key)
    if head is None or head.incarnation != plan.stale.head.incarnation:
        raise not_found("transcript", key.session_id)
    _require_writer(head, asking)
    newest = await summary_store.newest_summary(connection, key)
    if (newest and newest.seq) != (plan.stale.previous and plan.stale.previous.seq):
        raise compacted_meanwhile()


def _require_writer(head: Head, asking: Asking) -> None:
    if asking.claim is None:
        if head.writer_run_id:
            raise is_being_written()
    elif (head.writer_run_id, head.writer_epoch) != (asking.claim.run_id, asking.claim.epoch):
        raise claim_lost(head)


async def _judge(hooks: Peer, key: Key, asking: Asking, plan: Plan) -> hook_pb.DispatchBeforeCompactionResponse:
    event = hook_pb.BeforeCompactionEvent(
        session_id=key.session_id,
        run_id=asking.claim.run_id if asking.claim else "",
        source_entry_count=len(plan.sources),
        source_token_count=plan.source_token_count,
        first_source_seq=plan.first_seq,
        last_source_seq=plan.last_seq,
        previous_summary=plan.previous_text,
    )
    request = hook_pb.DispatchBeforeCompactionRequest(event=event)
    with acting_for(key.tenant_id):
        return await hooks.unary(
            HookServiceStub(hooks.channel).DispatchBeforeCompaction, request, timeout_seconds=_HOOK_SECONDS
        )


def _reach(peer: Peer | None, name: str) -> Peer:
    if peer is None:
        raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, f"this service was not told where {name} is")
    return peer
