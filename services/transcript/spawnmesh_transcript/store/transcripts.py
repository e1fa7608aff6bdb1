"""Transcripts: one row each, with the head and the totals."""

from dataclasses import dataclass, fields

from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.store.rows import fetch_one, head_of, key_parameters
from spawnmesh_transcript.store.tenants import join_writers_statement

_SQL = load_statements(__name__)
READ_TRANSCRIPT = _SQL["read_transcript"]

MAX_SCANNED_TRANSCRIPTS = 5_000
"""Rows at which a page of sizes looks, so that deleted transcripts cannot make it expensive."""


async def begin_transcript(
    database: Database,
    key: Key,
    *,
    incarnation: str,
    parent_session_id: str,
    service: str,
    header: bytes,
) -> Head | None:
    """Insert a transcript that is no fork, with its header, in one round trip and one
    transaction.

    Returns None, and writes nothing, if there is or was one, or the tenant is being purged.
    """
    statements = begin_statements(
        key,
        incarnation=incarnation,
        parent_session_id=parent_session_id,
        service=service,
        header=header,
    )
    *_, rows = await database.transact(key.tenant_id, *statements)
    return Head(incarnation, 1, rows[0]["chain_hash"], "", 0) if rows else None


def begin_statements(
    key: Key, *, incarnation: str, parent_session_id: str, service: str, header: bytes
) -> list[Statement]:
    """Return the statements with which `begin_transcript` inserts a transcript and its header."""
    parameters = key_parameters(
        key,
        incarnation=incarnation,
        parent_session_id=parent_session_id,
        service=service,
        entry_id=new_id(IdKind.ENTRY),
        body=header,
    )
    return [join_writers_statement(key.tenant_id), (_SQL["begin_transcript"], parameters)]


async def insert_transcript(
    connection: Connection, key: Key, *, incarnation: str, forked_from_session_id: str, parent_session_id: str
) -> bool:
    """Insert an empty transcript. Returns False if there is or was one. Needs `enter_tenant`."""
    row = await fetch_one(
        connection,
        _SQL["insert_transcript"],
        key,
        incarnation=incarnation,
        forked_from_session_id=forked_from_session_id,
        parent_session_id=parent_session_id,
    )
    return row is not None


async def has_begun(connection: Connection, key: Key) -> bool:
    """Return whether there is or was a transcript, or one is being imported."""
    return await fetch_one(connection, _SQL["has_begun"], key) is not None


async def is_deleted(connection: Connection, key: Key) -> bool:
    """Return whether the transcript was deleted, also before its creation."""
    return await fetch_one(connection, _SQL["is_deleted"], key) is not None


async def get_transcript(connection: Connection, key: Key) -> Transcript:
    """Return the transcript without its entries. Raises NOT_FOUND."""
    transcript = await read_transcript(connection, key)
    if transcript is None:
        raise not_found("transcript", key.session_id)
    return transcript


async def read_transcript(connection: Connection, key: Key) -> Transcript | None:
    """Return the transcript without its entries; None if there is none."""
    row = await fetch_one(connection, READ_TRANSCRIPT, key)
    return None if row is None else transcript_of(row)


def transcript_of(row: Row) -> Transcript:
    """Return the transcript from a row of READ_TRANSCRIPT."""
    return Transcript(
        head_of(row),
        row["forked_from_session_id"],
        row["turn_count"],
        row["superseded_turn_count"],
        row["token_count"],
    )


async def is_descendant(connection: Connection, key: Key, ancestor_id: str) -> bool:
    """Return whether the session is the ancestor or descends from it."""
    return await fetch_one(connection, _SQL["is_descendant"], key, ancestor_id=ancestor_id) is not None


async def list_family(connection: Connection, key: Key) -> list[str]:
    """Return the readable transcripts of the session and its descendants, itself first."""
    cursor = await connection.execute(_SQL["list_family"], key_parameters(key), binary=True)
    return [row["session_id"] for row in await cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class TranscriptSize:
    """The size of a transcript, for its readers and as stored."""

    session_id: str
    entry_count: int
    token_count: int
    logical_bytes: int
    stored_bytes: int


_SIZE_FIELDS = [field.name for field in fields(TranscriptSize)]


@dataclass(frozen=True, slots=True)
class TranscriptSizesPage:
    """Sizes by session id. `end` is the session of the last row at which the page looked; empty on
    the last page.
    """

    sizes: list[TranscriptSize]
    end: str


async def list_transcript_sizes(
    connection: Connection,
    tenant_id: str,
    *,
    after_session_id: str,
    page_size: int,
    scan_limit: int = MAX_SCANNED_TRANSCRIPTS,
) -> TranscriptSizesPage:
    """Return a page of readable transcripts, by session id.

    It looks at `scan_limit` rows at most.
    """
    parameters = {
        "tenant_id": tenant_id,
        "after_session_id": after_session_id,
        "row_count": page_size + 1,
        "scan_limit": scan_limit,
    }
    cursor = await connection.execute(_SQL["list_transcript_sizes"], parameters, binary=True)
    rows = await cursor.fetchall()
    sizes = [TranscriptSize(*(row[name] for name in _SIZE_FIELDS)) for row in rows if row["is_live"]]
    if len(sizes) > page_size:
        return TranscriptSizesPage(sizes[:page_size], sizes[page_size - 1].session_id)
    return TranscriptSizesPage(sizes, rows[-1]["session_id"] if rows and rows[-1]["is_end"] else "")


async def list_session_ids(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[str]:
    """Return the sessions of readable transcripts, in order."""
    parameters = {"tenant_id": tenant_id, "after_session_id": after_session_id, "row_count": row_count}
    rows = await (await connection.execute(_SQL["list_session_ids"], parameters)).fetchall()
    return [row["session_id"] for row in rows]
