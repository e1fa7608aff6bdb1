"""What one compaction is about: read at one moment, without bodies first, and then the bodies of what a summary is made of."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import payload_store, store, summary_store, tenant_store
from spawnmesh_transcript.domain.compaction import (
    Source,
    fitting_end,
    is_worth_it,
    least_end,
    whole_end,
)
from spawnmesh_transcript.domain.entries import Head, StoredEntry
from spawnmesh_transcript.domain.pairing import pair
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.selection import batches
from spawnmesh_transcript.domain.tier import TailLimits, newest_stale
from spawnmesh_transcript.domain.turns import Group, Turn
from spawnmesh_transcript.source_text import source_of
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.summary_store import ScannedSource, Summary
from spawnmesh_transcript.tokens import count_tokens

_TAIL_ROWS = 256
_SOURCE_ROWS = 8_192
_LATE_ROWS = 512  # A result follows its call closely; one that is further behind is not looked for.
_BODIES = 32


@dataclass(frozen=True, slots=True)
class Stale:
    """What could be summarized, oldest first, and the summary before it."""

    head: Head
    policy: TenantPolicy
    previous: Summary | None
    scanned: tuple[ScannedSource, ...]
    groups: tuple[Group, ...]
    end_seq: int

    @property
    def covered_seq(self) -> int:
        return self.previous.last_source_seq if self.previous else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be summarized: up to `last_seq`, so many messages and notes of so many tokens, the previous summary's among these."""

    stale: Stale
    last_seq: int
    previous_text: str
    sources: tuple[Source, ...]
    file_ids: tuple[str, ...]
    source_token_count: int

    @property
    def first_seq(self) -> int:
        return self.stale.covered_seq + 1

    @property
    def covered(self) -> list[ScannedSource]:
        """Superseded ones among them."""
        return [source for source in self.stale.scanned if source.turn.seq <= self.last_seq]


async def find_stale(database: Database, key: Key, tail: TailLimits) -> Stale:
    """What is not fresh and in no summary yet; `end_seq` is 0 where that is nothing, or too little. Raises NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        transcript = await store.read_transcript(connection, key)
        if transcript is None:
            raise not_found("transcript", key.session_id)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        previous = await summary_store.newest_summary(connection, key)
        covered_seq = previous.last_source_seq if previous else 0
        stale_seq = await _stale_seq(connection, key, transcript, tail, covered_seq)
        scanned = await summary_store.scan_sources(
            connection, key, after_seq=covered_seq, row_count=_SOURCE_ROWS + _LATE_ROWS
        )
    turns = [source.turn for source in scanned if not source.is_superseded]
    groups = pair(turns).groups
    if len(scanned) == _SOURCE_ROWS + _LATE_ROWS:
        stale_seq = min(stale_seq, scanned[_SOURCE_ROWS].turn.seq)
    end_seq = whole_end(groups, stale_seq)
    if not is_worth_it(turn for turn in turns if turn.seq <= end_seq):
        end_seq = 0
    return Stale(transcript.head, policy, previous, tuple(scanned), groups, end_seq)


async def make_plan(database: Database, key: Key, stale: Stale) -> Plan:
    """What of it one compaction can do: the oldest, and with a call its results. Of a large result its references are read, if it has some."""
    turns = [one.turn for one in stale.scanned if not one.is_superseded and one.turn.seq <= stale.end_seq]
    previous_text, sources, file_ids = "", [], []
    if stale.previous:
        async with database.transaction(key.tenant_id) as connection:
            await store.keep_index_order(connection)
            [entry] = await _entries(connection, key, [stale.previous.seq])
        previous_text = pb.EntryBody.FromString(entry.body).compaction.summary
    least_seq = least_end(stale.groups, turns)
    for batch in batches(turns, max_count=_BODIES):
        some, files = await _read(database, key, batch)
        sources += some
        file_ids += files
        if fitting_end(sources) < sources[-1].seq >= least_seq:
            break
    # Before a call whose results are beyond what fits may be next to nothing: then the call goes with it, and what no model reads of that.
    last_seq = max(least_seq, whole_end(stale.groups, fitting_end(sources)))
    taken = tuple(source for source in sources if source.seq <= last_seq)
    previous_token_count = stale.previous.token_count if stale.previous else 0
    return Plan(
        stale,
        last_seq,
        previous_text,
        taken,
        tuple(file_ids),
        previous_token_count + sum(turn.token_count for turn in turns if turn.seq <= last_seq),
    )


async def _stale_seq(
    connection: Connection, key: Key, transcript: store.Transcript, tail: TailLimits, covered_seq: int
) -> int:
    """The newest seq that is not fresh, by a scan of the fresh end; 0 where the summary covers it."""
    turns: list[Turn] = []
    before_seq, row_count = transcript.head.seq + 1, _TAIL_ROWS
    while True:
        rows = await store.scan_entries(
            connection, key, after_seq=covered_seq, before_seq=before_seq, row_count=row_count
        )
        turns += [row.turn for row in rows if row.turn]
        stale_seq = newest_stale(
            turns, turn_count=transcript.turn_count, token_count=transcript.token_count, limits=tail
        )
        if stale_seq or len(rows) < row_count:
            return stale_seq
        before_seq = rows[-1].seq
        row_count *= 2


async def _read(database: Database, key: Key, turns: Sequence[Turn]) -> tuple[list[Source], list[str]]:
    """The sources as a model reads them, and the files that their references name."""
    seqs = [turn.seq for turn in turns]
    async with database.transaction(key.tenant_id) as connection:
        await store.keep_index_order(connection)
        stubs = await payload_store.scan_stubs(connection, key, first_seq=seqs[0], last_seq=seqs[-1])
        stubbed = sorted({stub.seq for stub in stubs if stub.is_stored}.intersection(seqs))
        bodies = {entry.seq: entry.body for entry in await payload_store.read_stubbed_entries(connection, key, stubbed)}
        files = await payload_store.files_of_entries(connection, key, stubbed)
        for entry in await _entries(connection, key, [seq for seq in seqs if seq not in bodies]):
            bodies[entry.seq] = entry.body
    sources = await asyncio.to_thread(lambda: [source_of(seq, bodies[seq], count_tokens) for seq in seqs])
    return sources, [file.file_id for seq in stubbed for file in files.get(seq, [])]


async def _entries(connection: Connection, key: Key, seqs: Sequence[int]) -> list[StoredEntry]:
    entries = await store.read_entries(connection, key, seqs)
    if len(entries) != len(seqs):  # Deleted meanwhile.
        raise not_found("transcript", key.session_id)
    return entries
