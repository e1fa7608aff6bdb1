"""The statements about where payloads are as functions. Those with a database make a transaction of their own, others run in the caller's."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from psycopg.rows import args_row
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import EVERY_TENANT, Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.payload_store import file_values
from spawnmesh_transcript.store import Key

_SQL = load_statements("spawnmesh_transcript")


class TranscriptSize(NamedTuple):
    """What a transcript takes, in the database and to its readers."""

    session_id: str
    entry_count: int
    token_count: int
    logical_bytes: int
    stored_bytes: int


class EntrySize(NamedTuple):
    """An entry without its body. `role` is empty for what is no message."""

    seq: int
    role: str
    stored_bytes: int
    dropped_bytes: int


class KeptPayload(NamedTuple):
    """A text or image of an entry, and where it is."""

    seq: int
    block_index: int
    blob_id: str
    size_bytes: int
    sha256: str
    is_stored: bool
    is_inline: bool
    is_leaving: bool


class InlineEntry(NamedTuple):
    """An entry whose payloads, of so many bytes, are both in the blob store and in its stored body."""

    seq: int
    size_bytes: int


class ShorterBody(NamedTuple):
    """What is to be stored of an entry, and the blobs that make it whole, in the order of their blocks."""

    seq: int
    whole_bytes: int
    blob_ids: Sequence[str]
    body: bytes


async def list_transcripts(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[TranscriptSize]:
    """Those that can be read, by session id."""
    parameters = {"tenant_id": tenant_id, "after_session_id": after_session_id, "row_count": row_count}
    async with connection.cursor(binary=True, row_factory=args_row(TranscriptSize)) as cursor:
        await cursor.execute(_SQL["list_transcripts"], parameters)
        return await cursor.fetchall()


async def scan_sizes(connection: Connection, key: Key, *, after_seq: int, row_count: int) -> list[EntrySize]:
    """Entries behind a seq, oldest first. Needs `keep_index_order`."""
    async with connection.cursor(binary=True, row_factory=args_row(EntrySize)) as cursor:
        await cursor.execute(_SQL["scan_sizes"], _parameters(key, after_seq=after_seq, row_count=row_count))
        return await cursor.fetchall()


async def kept_payloads(
    connection: Connection, key: Key, *, first_seq: int, last_seq: int
) -> dict[int, list[KeptPayload]]:
    """For each entry between the seqs that has payloads, these in the order of their blocks, those that leave among them."""
    return await _payloads(connection, "kept_payloads", _parameters(key, first_seq=first_seq, last_seq=last_seq))


async def payloads_of_entries(connection: Connection, key: Key, seqs: Collection[int]) -> dict[int, list[KeptPayload]]:
    """For each of these entries that has payloads, these in the order of their blocks, without those that leave. Needs `keep_index_order`."""
    return await _payloads(connection, "payloads_of_entries", _parameters(key, seqs=list(set(seqs))))


async def keep_payloads(database: Database, key: Key, stubs: Sequence[Stub], *, first_seq: int) -> set[int]:
    """Names the payloads of entries, whose seqs count from there, and what stands for them.

    The seqs of those that had none before, and are not counted by another vocabulary now.
    """
    files = [{**file_values(file), "seq": first_seq + stub.place} for stub in stubs for file in stub.files]
    referring = [stub for stub in stubs if stub.body is not None]
    parameters = _parameters(
        key,
        seqs=[first_seq + stub.place for stub in referring],
        token_counts=[stub.token_count for stub in referring],
        token_vocabularies=[stub.token_vocabulary for stub in referring],
        stub_bodies=[stub.body for stub in referring],
        files=Jsonb(files),
    )
    return {row["kept_seq"] for row in await database.call(key.tenant_id, _SQL["keep_payloads"], parameters)}


async def cool_entries(database: Database, key: Key, bodies: Sequence[ShorterBody]) -> dict[int, int]:
    """Stores the shorter bodies; the seqs for which it did, and by how many bytes each got shorter."""
    entries = [{"seq": one.seq, "whole_bytes": one.whole_bytes, "blob_ids": list(one.blob_ids)} for one in bodies]
    parameters = _parameters(key, entries=Jsonb(entries), bodies=[one.body for one in bodies])
    rows = await database.call(key.tenant_id, _SQL["cool_entries"], parameters)
    return {row["cooled_seq"]: row["cooled_bytes"] for row in rows}


async def warm_entries(database: Database, key: Key, bodies: dict[int, bytes | None]) -> dict[int, int]:
    """Stores the whole bodies, and has payloads leave; None for one that is whole. The seqs for which it did, and how many bytes came back."""
    parameters = _parameters(key, seqs=list(bodies), bodies=list(bodies.values()))
    rows = await database.call(key.tenant_id, _SQL["warm_entries"], parameters)
    return {row["warmed_seq"]: row["warmed_bytes"] for row in rows}


async def inline_entries(
    connection: Connection, key: Key, *, after_seq: int, last_seq: int, row_count: int
) -> list[InlineEntry]:
    """Entries between the seqs that can do without their inline copies, oldest first."""
    parameters = _parameters(key, after_seq=after_seq, last_seq=last_seq, row_count=row_count)
    async with connection.cursor(binary=True, row_factory=args_row(InlineEntry)) as cursor:
        await cursor.execute(_SQL["inline_entries"], parameters)
        return await cursor.fetchall()


async def transcripts_to_cool(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[str]:
    """Sessions of which a worker may find something to drop, by id. Needs `keep_index_order`."""
    return await _sessions(connection, "transcripts_to_cool", tenant_id, after_session_id, row_count)


async def transcripts_with_unsettled_payloads(
    connection: Connection, tenant_id: str, *, after_session_id: str, row_count: int
) -> list[str]:
    """Sessions with payloads that are still to be put, or given up, by id."""
    return await _sessions(connection, "transcripts_with_unsettled_payloads", tenant_id, after_session_id, row_count)


async def mark_cooled(connection: Connection, key: Key, seq: int) -> None:
    """There is nothing to drop until the head is behind this seq."""
    await connection.execute(_SQL["mark_cooled"], _parameters(key, seq=seq))


async def leaving_payloads(
    connection: Connection, key: Key, *, row_count: int, seqs: Collection[int] | None = None
) -> list[tuple[str, int]]:
    """Blobs that are to be given up, and their entries: of these entries, or of all."""
    parameters = _parameters(key, row_count=row_count, seqs=None if seqs is None else list(seqs))
    cursor = await connection.execute(_SQL["leaving_payloads"], parameters)
    return [(row["blob_id"], row["seq"]) for row in await cursor.fetchall()]


async def list_tenants(database: Database, *, after_tenant_id: str, row_count: int) -> list[str]:
    """Tenants that are not being removed, by id."""
    async with database.transaction(EVERY_TENANT) as connection:
        parameters = {"after_tenant_id": after_tenant_id, "row_count": row_count}
        cursor = await connection.execute(_SQL["list_tenants"], parameters)
        return [row["tenant_id"] for row in await cursor.fetchall()]


async def claim_turn(connection: Connection, tenant_id: str, *, interval_seconds: float) -> bool:
    """Whether the tenant's turn has come and nobody else has taken it."""
    parameters = {"tenant_id": tenant_id, "interval_seconds": interval_seconds}
    return (await connection.execute(_SQL["claim_turn"], parameters)).rowcount == 1


async def sum_sizes(connection: Connection, tenant_id: str) -> tuple[int, int]:
    """Bytes of all bodies of the tenant as readers see them, and as they are stored."""
    row = await (await connection.execute(_SQL["sum_sizes"], {"tenant_id": tenant_id})).fetchone()
    return (row["logical_bytes"], row["stored_bytes"]) if row else (0, 0)


async def _payloads(connection: Connection, statement: str, parameters: dict[str, Any]) -> dict[int, list[KeptPayload]]:
    async with connection.cursor(binary=True, row_factory=args_row(KeptPayload)) as cursor:
        await cursor.execute(_SQL[statement], parameters)
        found: dict[int, list[KeptPayload]] = {}
        for payload in await cursor.fetchall():
            found.setdefault(payload.seq, []).append(payload)
        return found


async def _sessions(
    connection: Connection, statement: str, tenant_id: str, after_session_id: str, row_count: int
) -> list[str]:
    parameters = {"tenant_id": tenant_id, "after_session_id": after_session_id, "row_count": row_count}
    return [row["session_id"] for row in await (await connection.execute(_SQL[statement], parameters)).fetchall()]


def _parameters(key: Key, **more: Any) -> dict[str, Any]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}
