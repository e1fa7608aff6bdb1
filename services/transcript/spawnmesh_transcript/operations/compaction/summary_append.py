"""Append a summary to a transcript that still is as it was when the compaction was planned."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_transcript.domain.compaction import SummaryMethod
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.refusals import compacted_meanwhile, is_being_written, require_current
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.bodies.masking import masked_body
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.compaction.plan import CompactionPlan
from spawnmesh_transcript.operations.compaction.summarize import WrittenSummary
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store.summaries import Summary


@dataclass(frozen=True, slots=True)
class CompactionRequester:
    """The run that asks for a compaction, by its claim, or the client, by its name."""

    claim: WriterClaim | None
    client: str

    def require_writer(self, head: Head) -> None:
        """Raise WRITER_CLAIM_LOST for a run whose claim was taken over, and CONFLICT for a client
        while a run writes.
        """
        if self.claim is not None:
            require_current(self.claim, head)
        elif head.writer_run_id:
            raise is_being_written()


@dataclass(frozen=True, slots=True)
class AppendedSummary:
    """The head with the summary, its entry, what it summarizes, and how it was made."""

    head: Head
    entry: StoredEntry
    sources: entry_pb.SummarySources
    method: SummaryMethod


async def append_summary(
    database: Database,
    key: Key,
    requester: CompactionRequester,
    plan: CompactionPlan,
    written: WrittenSummary,
    text: str,
) -> AppendedSummary:
    """Append the summary, if the transcript has the writer and the newest summary of the plan.

    The same transaction enqueues the job that notifies observers. Raises NOT_FOUND,
    WRITER_CLAIM_LOST and CONFLICT.
    """
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
    async with database.transaction(key.tenant_id) as connection:
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
        writer = Writer(claim=requester.claim, client=requester.client)
        head = await append_store.write_entries(connection, key, [entry], writer)
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
        await summary_store.insert_summary(connection, key, summary, current_traceparent())
        [stored] = await entry_store.read_entries(connection, key, [head.seq])
    return AppendedSummary(head, stored._replace(token_count=token_count), sources, written.method)


async def _lock_unchanged(
    connection: Connection, key: Key, requester: CompactionRequester, plan: CompactionPlan
) -> None:
    """Lock the transcript until the transaction ends.

    Raises NOT_FOUND, WRITER_CLAIM_LOST and CONFLICT if it is not as it was when the plan was made.
    """
    head = await summary_store.lock_transcript(connection, key)
    if head is None or head.incarnation != plan.candidate.head.incarnation:
        raise not_found("transcript", key.session_id)
    requester.require_writer(head)
    newest, previous = await summary_store.read_newest_summary(connection, key), plan.candidate.previous
    if (newest and newest.seq) != (previous and previous.seq):
        raise compacted_meanwhile()
