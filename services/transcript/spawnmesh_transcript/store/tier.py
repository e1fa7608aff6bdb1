"""Moves of payloads between entries and the blob store.

A function that takes a database runs in a transaction of its own, any other in the caller's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import args_row
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.payloads import file_values
from spawnmesh_transcript.store.rows import key_parameters
from spawnmesh_transcript.store.tenants import join_writers_statement

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class PayloadLocation:
    """A text or image of an entry, and where it is stored."""

    seq: int
    block_index: int
    blob_id: str
    size_bytes: int
    sha256: str
    is_stored: bool
    is_inline: bool
    is_releasing: bool


@dataclass(frozen=True, slots=True)
class InlineEntry:
    """An entry whose payloads, of this many bytes, are in the blob store and in its body."""

    seq: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ShorterBody:
    """A body without its payloads, and the blobs that complete it, in the order of content
    blocks.
    """

    seq: int
    whole_bytes: int
    blob_ids: Sequence[str]
    body: bytes


async def scan_payloads(
    connection: Connection, key: Key, *, first_seq: int, last_seq: int
) -> dict[int, list[PayloadLocation]]:
    """Return the payloads of entries between the seqs, in the order of content blocks.

    It includes payloads that are being released.
    """
    return await _payloads(
        connection, "scan_payloads", key_parameters(key, first_seq=first_seq, last_seq=last_seq)
    )


async def list_payloads(
    connection: Connection, key: Key, seqs: Collection[int]
) -> dict[int, list[PayloadLocation]]:
    """Return the payloads of these entries, in the order of content blocks.

    It leaves out payloads that are being released.
    """
    return await _payloads(connection, "list_payloads", key_parameters(key, seqs=sorted(set(seqs))))


async def record_payloads(database: Database, key: Key, stubs: Sequence[Stub], *, first_seq: int) -> set[int]:
    """Record the payloads and stubs of entries, whose seqs count from `first_seq`.

    Returns the seqs that it recorded: those without payloads whose stubs have the entry's token
    vocabulary.
    """
    files = [{**file_values(file), "seq": first_seq + stub.place} for stub in stubs for file in stub.files]
    referring = [stub for stub in stubs if stub.body is not None]
    parameters = key_parameters(
        key,
        seqs=[first_seq + stub.place for stub in referring],
        token_counts=[stub.token_count for stub in referring],
        token_vocabularies=[stub.token_vocabulary for stub in referring],
        stub_bodies=[stub.body for stub in referring],
        files=Jsonb(files),
    )
    _, _, recorded = await database.transact(
        key.tenant_id, *_locking(key), (_SQL["record_payloads"], parameters)
    )
    return {row["recorded_seq"] for row in recorded}


async def record_condensed(database: Database, key: Key, stubs: Sequence[Stub]) -> list[Stub]:
    """Record condensed messages, whose `place` is their seq. Returns those that it recorded.

    It skips an entry that has a stub, and one that was recounted since the caller read it. The lock
    excludes a recount.
    """
    parameters = key_parameters(
        key,
        seqs=[stub.place for stub in stubs],
        token_counts=[stub.token_count for stub in stubs],
        token_vocabularies=[stub.token_vocabulary for stub in stubs],
        stub_bodies=[stub.body for stub in stubs],
        file_ids=[stub.file_id for stub in stubs],
        thinking_token_counts=[stub.thinking_token_count for stub in stubs],
    )
    _, _, rows = await database.transact(
        key.tenant_id, *_locking(key), (_SQL["record_condensed"], parameters)
    )
    recorded = {row["seq"] for row in rows}
    return [stub for stub in stubs if stub.place in recorded]


async def delete_condensed(database: Database, key: Key, *, first_seq: int, last_seq: int) -> None:
    """Delete the condensed messages between two seqs."""
    parameters = key_parameters(key, first_seq=first_seq, last_seq=last_seq)
    await database.transact(key.tenant_id, *_locking(key), (_SQL["delete_condensed"], parameters))


async def drop_inline_payloads(database: Database, key: Key, bodies: Sequence[ShorterBody]) -> dict[int, int]:
    """Store the shorter bodies. Returns the dropped bytes for each seq that it changed."""
    statements = [
        (
            _SQL["drop_inline_payload"],
            key_parameters(
                key, seq=one.seq, whole_bytes=one.whole_bytes, blob_ids=list(one.blob_ids), body=one.body
            ),
        )
        for one in bodies
    ]
    _, _, *rows = await database.transact(key.tenant_id, *_locking(key), *statements)
    return {one.seq: row["byte_count"] for one, found in zip(bodies, rows, strict=True) for row in found}


async def restore_inline_payloads(
    database: Database, key: Key, bodies: dict[int, bytes | None]
) -> dict[int, int]:
    """Store the complete bodies and mark the payloads for release.

    A body is None if the entry is complete. Returns the restored bytes for each seq that it
    changed.
    """
    statements = [
        (_SQL["restore_inline_payload"], key_parameters(key, seq=seq, body=body))
        for seq, body in bodies.items()
    ]
    _, _, *rows = await database.transact(key.tenant_id, *_locking(key), *statements)
    return {seq: row["byte_count"] for seq, found in zip(bodies, rows, strict=True) for row in found}


def _locking(key: Key) -> tuple[Statement, Statement]:
    """Return the statements before a move of payloads."""
    return join_writers_statement(key.tenant_id), (_SQL["lock_for_payload_move"], key_parameters(key))


async def list_inline_entries(
    connection: Connection, key: Key, *, after_seq: int, last_seq: int, row_count: int
) -> list[InlineEntry]:
    """Return entries between the seqs whose inline copies may be dropped, oldest first."""
    parameters = key_parameters(key, after_seq=after_seq, last_seq=last_seq, row_count=row_count)
    async with connection.cursor(binary=True, row_factory=args_row(InlineEntry)) as cursor:
        await cursor.execute(_SQL["list_inline_entries"], parameters)
        return await cursor.fetchall()


async def list_transcripts_with_inline_payloads(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[str]:
    """Return sessions that may have inline copies to drop, by id."""
    return await _sessions(
        connection, "list_transcripts_with_inline_payloads", tenant_id, after_session_id, row_count
    )


async def list_transcripts_with_unsettled_payloads(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[str]:
    """Return sessions with payloads to put or to release, by id."""
    return await _sessions(
        connection, "list_transcripts_with_unsettled_payloads", tenant_id, after_session_id, row_count
    )


async def mark_inline_dropped(connection: Connection, key: Key, seq: int) -> None:
    """Record that nothing can be dropped until the head has passed this seq."""
    await connection.execute(_SQL["mark_inline_dropped"], key_parameters(key, seq=seq))


async def list_releasing_payloads(
    connection: Connection, key: Key, *, row_count: int, seqs: Collection[int] | None = None
) -> list[tuple[str, int]]:
    """Return blobs to release and their seqs: of these entries, or of all."""
    parameters = key_parameters(key, row_count=row_count, seqs=None if seqs is None else list(seqs))
    cursor = await connection.execute(_SQL["list_releasing_payloads"], parameters)
    return [(row["blob_id"], row["seq"]) for row in await cursor.fetchall()]


async def _payloads(
    connection: Connection, statement: str, parameters: dict[str, Any]
) -> dict[int, list[PayloadLocation]]:
    async with connection.cursor(binary=True, row_factory=args_row(PayloadLocation)) as cursor:
        await cursor.execute(_SQL[statement], parameters)
        found: dict[int, list[PayloadLocation]] = {}
        for payload in await cursor.fetchall():
            found.setdefault(payload.seq, []).append(payload)
        return found


async def _sessions(
    connection: Connection, statement: str, tenant_id: str, after_session_id: str, row_count: int
) -> list[str]:
    parameters = {"tenant_id": tenant_id, "after_session_id": after_session_id, "row_count": row_count}
    return [
        row["session_id"] for row in await (await connection.execute(_SQL[statement], parameters)).fetchall()
    ]
