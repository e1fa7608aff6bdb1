"""The head of a context, read in the round trip that begins its transaction."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.domain.policy import TranscriptPolicy
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.store import entries, snapshots, summaries, tenants, transcripts
from spawnmesh_transcript.store.rows import key_parameters
from spawnmesh_transcript.store.summaries import Summary

_STATEMENTS = (
    snapshots.BEGIN_SNAPSHOT,
    transcripts.READ_TRANSCRIPT,
    tenants.FIND_POLICY,
    entries.READ_NEWEST_USER_TURN,
    summaries.READ_NEWEST_SUMMARY,
)


class ContextHead(NamedTuple):
    """The transcript, the policy in force, the newest message of a user that is not superseded, and
    the summary in force.
    """

    transcript: Transcript
    policy: TranscriptPolicy
    newest_user_turn: Turn | None
    summary: Summary | None


@asynccontextmanager
async def open_context(database: Database, key: Key) -> AsyncIterator[tuple[Connection, ContextHead]]:
    """Open a transaction whose statements read one snapshot, and read the head of a context in it.

    Raises NOT_FOUND.
    """
    async with database.transaction_with_statements(key.tenant_id, _STATEMENTS, key_parameters(key)) as (
        connection,
        (_, found, policies, turns, found_summaries),
    ):
        if not found:
            raise not_found("transcript", key.session_id)
        head = ContextHead(
            transcripts.transcript_of(found[0]),
            tenants.policy_of(policies[0]) if policies else TranscriptPolicy(),
            entries.user_turn_of(turns[0]) if turns else None,
            Summary(**found_summaries[0]) if found_summaries else None,
        )
        yield connection, head
