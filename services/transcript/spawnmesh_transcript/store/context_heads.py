"""The head of a context, read in the round trip that begins its transaction."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

from psycopg.errors import SerializationFailure
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row

from spawnmesh_transcript.domain.entries import WriterClaim
from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.store import entries, snapshots, summaries, tenants, transcripts, writers
from spawnmesh_transcript.store.rows import key_parameters
from spawnmesh_transcript.store.summaries import Summary

_HEAD = (
    transcripts.READ_TRANSCRIPT,
    tenants.FIND_POLICY,
    entries.READ_NEWEST_USER_TURN,
    summaries.READ_NEWEST_SUMMARY,
)
_ATTEMPTS = 3
"""A claim is made again in a newer snapshot if the transcript was changed since the first one."""


class ContextHead(NamedTuple):
    """The transcript, the policy in force, the newest message of a user that is not superseded, and
    the summary in force.
    """

    transcript: Transcript
    policy: TranscriptPolicy
    newest_user_turn: Turn | None
    summary: Summary | None
    has_retracted: bool = False
    """The claim that was replaced had a draft."""


@asynccontextmanager
async def open_context(
    database: Database, key: Key, *, up_to_seq: int = 0, claim: WriterClaim | None = None
) -> AsyncIterator[tuple[Connection, ContextHead]]:
    """Open a transaction whose statements read one snapshot, and read the head of a context in it.

    With `up_to_seq`, it is the head as it was when the transcript ended at this seq, with the
    policy of now. The transaction makes the claim the current one if it is higher than that; then
    it locks the transcript's row. Raises NOT_FOUND, and INVALID_REQUEST for a seq beyond the end.
    """
    async with AsyncExitStack() as stack:
        connection, (retractions, found, policies, turns, found_summaries) = await _begin(
            stack, database, key, claim
        )
        if not found:
            raise not_found("transcript", key.session_id)
        head = ContextHead(
            transcripts.transcript_of(found[0]),
            tenants.policy_of(policies[0]) if policies else TranscriptPolicy(),
            entries.user_turn_of(turns[0]) if turns else None,
            Summary(**found_summaries[0]) if found_summaries else None,
            has_retracted=any(row["has_retracted"] for row in retractions),
        )
        if up_to_seq:
            head = await _head_at(connection, key, head, up_to_seq)
        yield connection, head


async def _begin(
    stack: AsyncExitStack, database: Database, key: Key, claim: WriterClaim | None
) -> tuple[Connection, Sequence[Sequence[Row]]]:
    """Begin the transaction. Return its connection, and the rows of the claim and of the head."""
    if claim is None:
        opening = database.transaction_with_statements(
            key.tenant_id, (snapshots.BEGIN_SNAPSHOT, *_HEAD), key_parameters(key)
        )
        connection, (_, *head) = await stack.enter_async_context(opening)
        return connection, [[], *head]
    statements = (snapshots.BEGIN_WRITABLE_SNAPSHOT, writers.MAKE_HIGHER_CLAIM, *_HEAD)
    parameters = key_parameters(key, run_id=claim.run_id, epoch=claim.epoch)
    for attempt in range(1, _ATTEMPTS + 1):
        opening = database.transaction_with_statements(key.tenant_id, statements, parameters)
        try:
            connection, (_, *rows) = await stack.enter_async_context(opening)
        except SerializationFailure:
            if attempt == _ATTEMPTS:
                raise
        else:
            return connection, rows
    raise AssertionError("the last attempt returns or raises")


async def _head_at(connection: Connection, key: Key, now: ContextHead, up_to_seq: int) -> ContextHead:
    """Return the head of the past. Reads the entries since the summary of that time."""
    transcript = now.transcript
    if up_to_seq > transcript.head.seq:
        raise invalid("up_to_seq", f"is beyond the end of the transcript, which is {transcript.head.seq}")
    summary = await summaries.read_summary_at(connection, key, up_to_seq=up_to_seq)
    covered = (
        (summary.last_source_seq, summary.covered_turn_count, summary.covered_token_count)
        if summary
        else (0, 0, 0)
    )
    turn_count, token_count = await entries.read_totals_at(
        connection, key, after_seq=covered[0], up_to_seq=up_to_seq
    )
    superseded = await summaries.count_superseded(connection, key, after_seq=0, up_to_seq=up_to_seq)
    past = replace(
        transcript,
        head=replace(transcript.head, seq=up_to_seq),
        turn_count=covered[1] + turn_count,
        superseded_turn_count=superseded,
        token_count=covered[2] + token_count,
    )
    turn = await entries.read_user_turn_at(connection, key, up_to_seq=up_to_seq)
    return ContextHead(past, now.policy, turn, summary)
