"""The statements about payloads and stubs as functions. Each but `append_with_stubs` runs in the caller's transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import args_row, class_row
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript import store
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.large_results import File, Stub, file_id_of
from spawnmesh_transcript.store import Append, AppendOutcome, Key

_SQL = load_statements("spawnmesh_transcript")

_CALL_ROWS = 512  # A result follows its call closely; where it does not, its reference says less.


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A file and the entry that it is of."""

    blob_id: str
    session_id: str
    seq: int
    block_index: int
    tool_name: str
    about: str
    mime_type: str
    size_bytes: int
    line_count: int
    sha256: str
    is_stored: bool
    entry_id: str
    create_time: datetime


class WaitingPayload(NamedTuple):
    """A payload that the blob store may not have yet, and what its entry counts and has in bytes."""

    blob_id: str
    seq: int
    block_index: int
    mime_type: str
    entry_token_count: int
    entry_bytes: int


class UsableStub(NamedTuple):
    """What a context may have in place of an entry from now on, and the files that it names."""

    seq: int
    token_count: int
    tool_name: str
    blob_ids: list[str]
    size_bytes: int


class StoredFile(NamedTuple):
    """A file that the blob store has, and which of its entry's content blocks it is."""

    file_id: str
    block_index: int
    size_bytes: int


class ScannedStub(NamedTuple):
    """What a context may have in place of an entry, without its body."""

    seq: int
    token_count: int
    is_stored: bool


async def append_with_stubs(database: Database, append: Append, stubs: Sequence[Stub]) -> AppendOutcome:
    """As `store.append_entries` makes one append that waits, with the stubs of its entries in the same transaction."""
    call = store.call_parameters(append, 1)
    bodies = b"".join(entry.body for entry in append.entries)
    parameters = {"session_id": append.key.session_id, "calls": Jsonb([call]), "bodies": bodies, **_stub_rows(stubs)}
    (row,) = await database.call(append.key.tenant_id, _SQL["append_with_stubs"], parameters)
    return store.append_outcome(row, call["entries"])


async def insert_stubs(connection: Connection, key: Key, stubs: Sequence[Stub], *, first_seq: int) -> None:
    """The stubs of entries that this transaction has just written, the first of them at `first_seq`."""
    await connection.execute(_SQL["insert_stubs"], _parameters(key, first_seq=first_seq, **_stub_rows(stubs)))


async def find_calls(
    connection: Connection, key: Key, call_ids: Collection[str], *, before_seq: int | None = None
) -> list[int]:
    """Seqs of the nearest messages that make one of the calls, oldest first; before a seq, or else before the end."""
    parameters = _parameters(key, call_ids=list(call_ids), row_count=_CALL_ROWS, before_seq=before_seq)
    rows = await (await connection.execute(_SQL["find_calls"], parameters)).fetchall()
    nearest: dict[str, int] = {}
    for row in rows:
        for call_id in row["calls"]:
            nearest.setdefault(call_id, row["seq"])
    return sorted({nearest[call_id] for call_id in call_ids if call_id in nearest})


async def waiting_payloads(
    connection: Connection, key: Key, *, row_count: int, file_count: int
) -> dict[int, list[WaitingPayload]]:
    """What the blob store may not have yet of some entries, by their seqs: of each all, up to `file_count`. Needs `keep_index_order`."""
    async with connection.cursor(binary=True, row_factory=args_row(WaitingPayload)) as cursor:
        await cursor.execute(_SQL["waiting_payloads"], _parameters(key, row_count=row_count, file_count=file_count))
        found: dict[int, list[WaitingPayload]] = {}
        for payload in await cursor.fetchall():
            found.setdefault(payload.seq, []).append(payload)
        return found


async def count_unput(connection: Connection, key: Key, *, last_seq: int | None = None) -> int:
    """How many entries up to that seq, or of all, have payloads that the blob store may not have. Needs `keep_index_order`."""
    row = await (await connection.execute(_SQL["count_unput"], _parameters(key, last_seq=last_seq))).fetchone()
    return int(row["entry_count"]) if row else 0


async def mark_stored(connection: Connection, key: Key, blob_ids: Collection[str]) -> list[UsableStub]:
    """The blob store has these; gives the stubs whose payloads it has all, which count from now on.

    The stubs are locked first, so that of two who mark one payload each of the same entry, the second sees what the first did. Needs
    `keep_index_order`.
    """
    parameters = _parameters(key, blob_ids=list(blob_ids))
    locked = await (await connection.execute(_SQL["lock_stubs_of"], parameters)).fetchall()
    await _for_each(connection, "mark_stored", key, blob_ids)
    if not locked:
        return []
    async with connection.cursor(row_factory=args_row(UsableStub)) as cursor:
        await cursor.execute(_SQL["use_stubs"], _parameters(key, seqs=[row["seq"] for row in locked]))
        return await cursor.fetchall()


async def scan_stubs(connection: Connection, key: Key, *, first_seq: int, last_seq: int) -> list[ScannedStub]:
    """The stubs of the entries between two seqs, without their bodies."""
    async with connection.cursor(binary=True, row_factory=args_row(ScannedStub)) as cursor:
        await cursor.execute(_SQL["scan_stubs"], _parameters(key, first_seq=first_seq, last_seq=last_seq))
        return await cursor.fetchall()


async def read_stubbed_entries(connection: Connection, key: Key, seqs: Collection[int]) -> list[StoredEntry]:
    """The entries of these seqs with references in their bodies and in their token counts. Needs `keep_index_order`."""
    async with connection.cursor(binary=True, row_factory=args_row(StoredEntry)) as cursor:
        await cursor.execute(_SQL["read_stubbed_entries"], _parameters(key, seqs=list(seqs)))
        return await cursor.fetchall()


async def files_of_entries(connection: Connection, key: Key, seqs: Collection[int]) -> dict[int, list[StoredFile]]:
    """For each entry that has files in the blob store, these in the order of their content blocks. Needs `keep_index_order`."""
    rows = await (await connection.execute(_SQL["files_of_entries"], _parameters(key, seqs=list(set(seqs))))).fetchall()
    files: dict[int, list[StoredFile]] = {}
    for row in rows:
        file = StoredFile(file_id_of(row["blob_id"]), row["block_index"], row["size_bytes"])
        files.setdefault(row["seq"], []).append(file)
    return files


async def read_payload(connection: Connection, tenant_id: str, blob_id: str) -> StoredPayload | None:
    """The file of that blob; None where there is none in a transcript that can be read. Needs `keep_index_order`."""
    async with connection.cursor(row_factory=class_row(StoredPayload)) as cursor:
        await cursor.execute(_SQL["read_payload"], {"tenant_id": tenant_id, "blob_id": blob_id})
        return await cursor.fetchone()


async def payloads_to_release(connection: Connection, key: Key, *, row_count: int) -> list[str]:
    """Blobs of a transcript that nobody writes any more."""
    cursor = await connection.execute(_SQL["payloads_to_release"], _parameters(key, row_count=row_count))
    return [row["blob_id"] for row in await cursor.fetchall()]


async def delete_payloads(connection: Connection, key: Key, blob_ids: Collection[str]) -> None:
    """Forgets blobs that the blob store has given up; one may stay that was just changed. Needs `keep_index_order`."""
    await _for_each(connection, "delete_payload", key, blob_ids)


async def _for_each(connection: Connection, statement: str, key: Key, blob_ids: Collection[str]) -> None:
    """Executes the statement for each blob, in one round trip."""
    async with connection.cursor() as cursor:
        await cursor.executemany(
            _SQL[statement], [{"tenant_id": key.tenant_id, "blob_id": blob_id} for blob_id in blob_ids]
        )


def _parameters(key: Key, **more: Any) -> dict[str, Any]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}


def file_values(file: File) -> dict[str, Any]:
    """The columns of a payload that say what it is."""
    return {
        "blob_id": file.blob_id,
        "block_index": file.block_index,
        "tool_name": file.tool_name,
        "about": file.about,
        "mime_type": file.mime_type,
        "size_bytes": file.size_bytes,
        "line_count": file.line_count,
        "sha256": file.sha256,
    }


def _stub_rows(stubs: Sequence[Stub]) -> dict[str, Any]:
    files = [{**file_values(file), "place": stub.place} for stub in stubs for file in stub.files]
    referring = [stub for stub in stubs if stub.body is not None]
    return {
        "places": [stub.place for stub in referring],
        "token_counts": [stub.token_count for stub in referring],
        "stub_bodies": [stub.body for stub in referring],
        "files": Jsonb(files),
    }
