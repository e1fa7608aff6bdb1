"""Appends to a long transcript, of which a test counts the rows that they read."""

from dataclasses import replace

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection
from spawnmesh_transcript.domain.appends import Append, refuse_append
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store import appends as append_store

from tests.support.transcript.long_transcripts import ROWS
from tests.support.transcript.rows_read import Work

TABLES = (
    "transcripts",
    "entries",
    "stubs",
    "payloads",
    "summaries",
    "activities",
    "appends",
    "draft_pieces",
)


def append_of(key: Key, target_entry_id: str, request_id: str) -> Append:
    label = NewEntry(
        kind=EntryKind.LABEL,
        body=b"x",
        entry_id=new_id(IdKind.ENTRY),
        label=Label.SUPERSEDED,
        target_entry_id=target_entry_id,
    )
    return Append(key, [label], request_id, b"x", Writer(service="session"), 0)


def appended(outcome: str, target_entry_id: str, request_id: str = "new") -> Work:
    async def work(connection: Connection, key: Key) -> None:
        append = append_of(key, target_entry_id, request_id)
        statements, _ = append_store.waiting_statements(append)
        for statement in statements:
            made = await connection.execute(*statement, binary=True)
        row = await made.fetchone()
        if row and row["is_made"]:
            assert outcome == "APPENDED"
            return
        row = await (await connection.execute(*append_store.state_statement(append), binary=True)).fetchone()
        refused = refuse_append(append, append_store.state_of(row or {}))
        assert refused
        assert refused.outcome == outcome

    return work


async def chained(connection: Connection, key: Key) -> None:
    """Append by 16 keys in one call."""
    entries = [NewEntry(kind=EntryKind.CUSTOM, body=b"x")]
    appends = [replace(append_of(key, "", f"new-{n}"), entries=entries) for n in range(16)]
    statement, _ = append_store.batch_statement(key.tenant_id, {key: appends})
    row = await (await connection.execute(*statement, binary=True)).fetchone()
    assert row
    assert len(row["chain_hashes"]) == 16


def plainly(number: int) -> Work:
    """Return appends that refer to nothing, to the long transcript and to the short ones beside
    it."""

    async def work(connection: Connection, key: Key) -> None:
        entries = [NewEntry(kind=EntryKind.CUSTOM, body=b"x")]
        keys = [key, *(Key(key.tenant_id, f"ses_{n}") for n in range(ROWS - number + 2, ROWS + 1))]
        appends = [replace(append_of(one, "", "new"), entries=entries) for one in keys]
        by_key = {append.key: [append] for append in appends}
        statement, _ = append_store.batch_statement(key.tenant_id, by_key)
        rows = await (await connection.execute(*statement)).fetchall()
        assert sorted(row["session_id"] for row in rows) == sorted(one.session_id for one in keys)

    return work
