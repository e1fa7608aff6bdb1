"""Plan a compaction: scan what could be summarized at one moment, and then read the bodies of the
sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_postgres.database import Database

from spawnmesh_transcript.domain.compaction import (
    Source,
    fitting_end,
    is_worth_it,
    minimal_end,
    unsplit_end,
)
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.pairing import pair
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.selection import batches
from spawnmesh_transcript.domain.stale_results import TailLimits
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Group, Turn
from spawnmesh_transcript.operations.bodies.tokens import count_tokens
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.compaction.sources import source_of
from spawnmesh_transcript.operations.stale_scan import scan_newest_stale
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import snapshots
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store.summaries import ScannedSource, Summary

_TAIL_ROWS = 256
_SOURCE_ROWS = 8_192
_LATE_ROWS = 512  # A result follows its call closely; one that comes later is not searched for.
_BODIES = 32


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
    """The entries that could be summarized, oldest first, and the summary before them.

    `end_seq` is 0 if there are none, or too few.
    """

    head: Head
    policy: TranscriptPolicy
    previous: Summary | None
    scanned: tuple[ScannedSource, ...]
    groups: tuple[Group, ...]
    end_seq: int

    @property
    def covered_seq(self) -> int:
        return self.previous.last_source_seq if self.previous else 0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The sources of one compaction, up to `last_seq`.

    `source_token_count` includes the tokens of the previous summary.
    """

    candidate: CompactionCandidate
    last_seq: int
    previous_text: str
    sources: tuple[Source, ...]
    file_ids: tuple[str, ...]
    source_token_count: int

    @property
    def first_seq(self) -> int:
        return self.candidate.covered_seq + 1

    @property
    def covered(self) -> list[ScannedSource]:
        """Return the messages and notes that the summary covers, superseded ones included."""
        return [source for source in self.candidate.scanned if source.turn.seq <= self.last_seq]


async def find_candidate(database: Database, key: Key, tail: TailLimits) -> CompactionCandidate:
    """Return what is not fresh and in no summary yet. Raises NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        await snapshots.begin_snapshot(connection)
        transcript = await transcript_store.get_transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        previous = await summary_store.read_newest_summary(connection, key)
        covered_seq = previous.last_source_seq if previous else 0
        stale_seq = await scan_newest_stale(
            connection, key, transcript, tail, after_seq=covered_seq, row_count=_TAIL_ROWS
        )
        scanned = await summary_store.scan_sources(
            connection, key, after_seq=covered_seq, row_count=_SOURCE_ROWS + _LATE_ROWS
        )
    turns = [source.turn for source in scanned if not source.is_superseded]
    groups = pair(turns).groups
    if len(scanned) == _SOURCE_ROWS + _LATE_ROWS:
        stale_seq = min(stale_seq, scanned[_SOURCE_ROWS].turn.seq)
    end_seq = unsplit_end(groups, stale_seq)
    if not is_worth_it(turn for turn in turns if turn.seq <= end_seq):
        end_seq = 0
    return CompactionCandidate(transcript.head, policy, previous, tuple(scanned), groups, end_seq)


async def make_plan(
    database: Database, threads: BulkThreads, key: Key, candidate: CompactionCandidate
) -> CompactionPlan:
    """Return what one compaction can summarize: the oldest entries, and each call with its
    results.

    A large result is read as its references, if it has any.
    """
    turns = [
        one.turn for one in candidate.scanned if not one.is_superseded and one.turn.seq <= candidate.end_seq
    ]
    previous_text, sources, file_ids = "", [], []
    if candidate.previous:
        async with database.transaction(key.tenant_id) as connection:
            entries = await entry_store.get_entries(connection, key, [candidate.previous.seq])
        body = pb.EntryBody.FromString(entries[candidate.previous.seq].body)
        previous_text = body.compaction.summary
    least_seq = minimal_end(candidate.groups, turns)
    for batch in batches(turns, max_count=_BODIES):
        some, files = await _read(database, threads, key, batch)
        sources += some
        file_ids += files
        if fitting_end(sources) < sources[-1].seq >= least_seq:
            break
    # If hardly anything stands before a call whose results do not fit, the call is summarized too,
    # with results that no model reads.
    last_seq = max(least_seq, unsplit_end(candidate.groups, fitting_end(sources)))
    taken = tuple(source for source in sources if source.seq <= last_seq)
    previous_token_count = candidate.previous.token_count if candidate.previous else 0
    return CompactionPlan(
        candidate,
        last_seq,
        previous_text,
        taken,
        tuple(file_ids),
        previous_token_count + sum(turn.token_count for turn in turns if turn.seq <= last_seq),
    )


async def _read(
    database: Database, threads: BulkThreads, key: Key, turns: Sequence[Turn]
) -> tuple[list[Source], list[str]]:
    """Return the sources as a model reads them, and the files that their references name."""
    seqs = [turn.seq for turn in turns]
    async with database.transaction(key.tenant_id) as connection:
        stubs = await payload_store.scan_stubs(connection, key, first_seq=seqs[0], last_seq=seqs[-1])
        usable = {stub.seq for stub in stubs if stub.is_stored and not stub.is_condensed}
        stubbed = sorted(usable.intersection(seqs))
        found = await payload_store.read_stubs(connection, key, stubbed, among=stubbed)
        bodies = {stub.seq: stub.body for stub in found}
        files = await payload_store.list_stored_files(connection, key, stubbed)
        unstubbed = [seq for seq in seqs if seq not in bodies]
        for seq, entry in (await entry_store.get_entries(connection, key, unstubbed)).items():
            bodies[seq] = entry.body
    sources = await threads.run(
        key.tenant_id, lambda: [source_of(seq, bodies[seq], count_tokens) for seq in seqs]
    )
    return sources, [file.file_id for seq in stubbed for file in files.get(seq, [])]
