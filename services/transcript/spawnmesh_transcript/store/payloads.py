"""Payloads and stubs. Each function runs in the caller's transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import args_row, class_row
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.large_results import File, Stub, file_id_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.rows import key_parameters, runs_of

_SQL = load_statements(__name__)

_CALL_ROWS = 512  # A result follows its call closely; otherwise its reference describes less.


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A file and its entry."""

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


@dataclass(frozen=True, slots=True)
class UnstoredPayload:
    """A payload that the blob store may not have, and the tokens and bytes of its entry."""

    blob_id: str
    seq: int
    block_index: int
    mime_type: str
    entry_token_count: int
    entry_bytes: int


@dataclass(frozen=True, slots=True)
class UsableStub:
    """A stub that contexts may use from now on, and its files."""

    seq: int
    token_count: int
    tool_name: str
    blob_ids: list[str]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """A file that the blob store has, and the index of its content block."""

    file_id: str
    block_index: int
    size_bytes: int


class ScannedStub(
    NamedTuple
):  # A tuple, since a context has hundreds and a dataclass takes five times as long to make.
    """A stub with the size of its body, and whether contexts may use it.

    A condensed message is a stub only for contexts that the transcript does not fit.
    """

    seq: int
    token_count: int
    size_bytes: int
    is_stored: bool
    is_condensed: bool
    thinking_token_count: int


class ReadStub(NamedTuple):
    """A stub as a context shows it. `file_id` is empty unless it is a condensed message."""

    seq: int
    token_count: int
    body: bytes
    file_id: str


class CondensedEntry(NamedTuple):
    """The entry of a condensed message."""

    session_id: str
    seq: int
    entry_id: str
    create_time: datetime


async def find_calls(
    connection: Connection, key: Key, call_ids: Collection[str], *, before_seq: int | None = None
) -> list[int]:
    """Return the seqs of the nearest messages that make one of the calls, oldest first.

    It searches back from `before_seq`, or from the end.
    """
    parameters = key_parameters(key, call_ids=list(call_ids), row_count=_CALL_ROWS, before_seq=before_seq)
    rows = await (await connection.execute(_SQL["find_calls"], parameters)).fetchall()
    nearest: dict[str, int] = {}
    for row in rows:
        for call_id in row["calls"]:
            nearest.setdefault(call_id, row["seq"])
    return sorted({nearest[call_id] for call_id in call_ids if call_id in nearest})


async def list_unstored_payloads(
    connection: Connection, key: Key, *, row_count: int, file_count: int
) -> dict[int, list[UnstoredPayload]]:
    """Return payloads that the blob store may not have, by seq, for some entries.

    It returns up to `file_count` payloads of each entry.
    """
    async with connection.cursor(binary=True, row_factory=args_row(UnstoredPayload)) as cursor:
        await cursor.execute(
            _SQL["list_unstored_payloads"], key_parameters(key, row_count=row_count, file_count=file_count)
        )
        found: dict[int, list[UnstoredPayload]] = {}
        for payload in await cursor.fetchall():
            found.setdefault(payload.seq, []).append(payload)
        return found


async def count_unstored_entries(connection: Connection, key: Key, *, last_seq: int | None = None) -> int:
    """Return the number of entries with payloads that the blob store may not have.

    It counts entries up to `last_seq`, or all.
    """
    row = await (
        await connection.execute(_SQL["count_unstored_entries"], key_parameters(key, last_seq=last_seq))
    ).fetchone()
    return int(row["entry_count"]) if row else 0


async def mark_stored(connection: Connection, key: Key, blob_ids: Collection[str]) -> list[UsableStub]:
    """Mark payloads as stored, and return the stubs whose payloads are now all stored.

    It locks the stubs first: if two transactions each mark one payload of an entry, the second
    sees the first's mark.
    """
    parameters = key_parameters(key, blob_ids=list(blob_ids))
    locked = await (await connection.execute(_SQL["lock_stubs"], parameters)).fetchall()
    await _for_each(connection, "mark_stored", key, blob_ids)
    if not locked:
        return []
    async with connection.cursor(row_factory=args_row(UsableStub)) as cursor:
        await cursor.execute(_SQL["enable_stubs"], key_parameters(key, seqs=[row["seq"] for row in locked]))
        return await cursor.fetchall()


async def scan_stubs(connection: Connection, key: Key, *, first_seq: int, last_seq: int) -> list[ScannedStub]:
    """Return the stubs of entries between two seqs, without bodies."""
    async with connection.cursor(binary=True, row_factory=args_row(ScannedStub)) as cursor:
        await cursor.execute(_SQL["scan_stubs"], key_parameters(key, first_seq=first_seq, last_seq=last_seq))
        return await cursor.fetchall()


async def read_stubs(
    connection: Connection, key: Key, seqs: Collection[int], *, among: Collection[int]
) -> list[ReadStub]:
    """Return the stubs of these seqs with their bodies.

    `among` are the seqs of which all other stubs may be read in passing.
    """
    runs = runs_of(among)
    parameters = key_parameters(
        key, first_seqs=[first for first, _ in runs], last_seqs=[last for _, last in runs]
    )
    async with connection.cursor(binary=True, row_factory=args_row(ReadStub)) as cursor:
        await cursor.execute(_SQL["read_stubs"], parameters)
        wanted = set(seqs)
        return [stub for stub in await cursor.fetchall() if stub.seq in wanted]


async def list_stored_files(
    connection: Connection, key: Key, seqs: Collection[int]
) -> dict[int, list[PayloadFile]]:
    """Return the stored files of each entry that has some, in the order of content blocks."""
    rows = await (
        await connection.execute(_SQL["list_stored_files"], key_parameters(key, seqs=sorted(set(seqs))))
    ).fetchall()
    files: dict[int, list[PayloadFile]] = {}
    for row in rows:
        file = PayloadFile(file_id_of(row["blob_id"]), row["block_index"], row["size_bytes"])
        files.setdefault(row["seq"], []).append(file)
    return files


async def read_payload(connection: Connection, tenant_id: str, blob_id: str) -> StoredPayload | None:
    """Return the file of this blob; None if no readable transcript has it."""
    async with connection.cursor(row_factory=class_row(StoredPayload)) as cursor:
        await cursor.execute(_SQL["read_payload"], {"tenant_id": tenant_id, "blob_id": blob_id})
        return await cursor.fetchone()


async def read_condensed_entry(connection: Connection, tenant_id: str, file_id: str) -> CondensedEntry | None:
    """Return the entry of the condensed message with this id; None if no readable transcript has
    it.
    """
    async with connection.cursor(row_factory=args_row(CondensedEntry)) as cursor:
        await cursor.execute(_SQL["read_condensed_entry"], {"tenant_id": tenant_id, "file_id": file_id})
        return await cursor.fetchone()


async def list_payloads_to_release(connection: Connection, key: Key, *, row_count: int) -> list[str]:
    """Return blobs of a transcript that has no writer any more."""
    cursor = await connection.execute(
        _SQL["list_payloads_to_release"], key_parameters(key, row_count=row_count)
    )
    return [row["blob_id"] for row in await cursor.fetchall()]


async def delete_payloads(connection: Connection, key: Key, blob_ids: Collection[str]) -> None:
    """Delete the rows of released blobs."""
    await _for_each(connection, "delete_payload", key, blob_ids)


async def _for_each(connection: Connection, statement: str, key: Key, blob_ids: Collection[str]) -> None:
    """Run the statement for each blob, in one round trip."""
    async with connection.cursor() as cursor:
        await cursor.executemany(
            _SQL[statement], [key_parameters(key, blob_id=blob_id) for blob_id in blob_ids]
        )


def file_values(file: File) -> dict[str, Any]:
    """Return the descriptive columns of a payload."""
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


def stub_rows(stubs: Sequence[Stub]) -> dict[str, Any]:
    """Return the parameters of a statement that inserts stubs and their payloads."""
    files = [{**file_values(file), "place": stub.place} for stub in stubs for file in stub.files]
    referring = [stub for stub in stubs if stub.body is not None]
    return {
        "places": [stub.place for stub in referring],
        "token_counts": [stub.token_count for stub in referring],
        "stub_bodies": [stub.body for stub in referring],
        "file_ids": [stub.file_id for stub in referring],
        "thinking_token_counts": [stub.thinking_token_count for stub in referring],
        "files": Jsonb(files),
    }
