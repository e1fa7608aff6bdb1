"""Round trips to PostgreSQL: each operation takes one, and a refusal no more than its reason needs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.drafts import DraftId, OutputKind, Piece, WrittenPieces
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry, WriterClaim
from spawnmesh_transcript.domain.stale_results import TailLimits
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.append_queue import open_append_queue
from spawnmesh_transcript.operations.context_assembly import ContextRequest, assemble
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store import drafts as draft_store
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import transcripts as transcript_store
from spawnmesh_transcript.store import writers as writer_store
from spawnmesh_transcript.store.summaries import Summary

from tests.support.transcript.fixtures import Service, Session

CLAIM = WriterClaim(new_id(IdKind.RUN), 5)
LOST = WriterClaim(new_id(IdKind.RUN), 4)


@pytest.fixture
async def one_connection(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="traced", max_connections=1) as database:
        yield database


async def _round_trips(database: Database, trace: Path, work: Awaitable[object]) -> int:
    """Return how often the server became ready for the next message of its client."""
    with trace.open("w+b") as file:
        async with database.connections.use() as connection:
            connection.pgconn.trace(file.fileno())
        await work
        async with database.connections.use() as connection:
            connection.pgconn.untrace()
    return trace.read_text().count("ReadyForQuery")


def _append(key: Key, claim: WriterClaim = CLAIM, **entry: object) -> Append:
    new = replace(NewEntry(EntryKind.CUSTOM, b"x"), **entry)
    return Append(key, (new,), new_id(IdKind.ENTRY), b"hash", Writer(claim=claim), 0)


def _label(key: Key, target: str) -> Append:
    return _append(key, kind=EntryKind.LABEL, label=Label.FINAL, target_entry_id=target)


async def _queued(database: Database, append: Append) -> str:
    async with open_append_queue(database, slots=1) as queue:
        return (await queue.append(append)).outcome


async def _create(database: Database, key: Key, first: Append) -> object:
    new = Key(key.tenant_id, new_id(IdKind.SESSION))
    return await transcript_store.begin_transcript(
        database, new, incarnation="inc_1", parent_session_id="", service="session", header=b""
    )


async def _acquire(database: Database, key: Key, first: Append) -> object:
    return await writer_store.acquire_writer(database, key, CLAIM)


async def _acquire_lost(database: Database, key: Key, first: Append) -> object:
    acquired = await writer_store.acquire_writer(database, key, LOST)
    assert acquired
    return acquired.is_moved is False


async def _release(database: Database, key: Key, first: Append) -> object:
    return await writer_store.release_writer(database, key, CLAIM)


async def _drafted(database: Database, key: Key, first: Append) -> object:
    pieces = (Piece(OutputKind.TEXT, b"text"), Piece(OutputKind.THINKING, b"thinking"))
    piece = WrittenPieces(DraftId(CLAIM.run_id, CLAIM.epoch, 1), 1, "p/m", 0, pieces)
    written = await draft_store.write_draft(database, key, piece)
    return written is not None and written.end_offset == 12


async def _scan(database: Database, key: Key, first: Append) -> object:
    return await entry_store.scan_window(database, key, from_seq=1, row_count=9, max_bytes=99)


async def _made(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, _append(key)) == "APPENDED"


async def _labelled(database: Database, key: Key, first: Append) -> object:
    made = await append_store.append_waiting(database, _append(key))
    return await _queued(database, _label(key, made.entry_ids[0])) == "APPENDED"


async def _waiting(database: Database, key: Key, first: Append) -> object:
    return (await append_store.append_waiting(database, _append(key))).outcome == "APPENDED"


async def _lost(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, _append(key, LOST)) == "CLAIM_LOST"


async def _waiting_lost(database: Database, key: Key, first: Append) -> object:
    return (await append_store.append_waiting(database, _append(key, LOST))).outcome == "CLAIM_LOST"


async def _other_settings(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, replace(_append(key), settings_version=9)) == "SETTINGS_CHANGED"


async def _replayed(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, first) == "REPLAYED"


async def _replayed_after_takeover(database: Database, key: Key, first: Append) -> object:
    repeated = replace(first, writer=Writer(claim=LOST))
    return await _queued(database, repeated) == "REPLAYED"


async def _no_target(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, _label(key, new_id(IdKind.ENTRY))) == "TARGET_NOT_FOUND"


async def _summarized(database: Database, key: Key, first: Append) -> object:
    summary = Summary(
        seq=9,
        entry_id=new_id(IdKind.ENTRY),
        first_source_seq=1,
        last_source_seq=2,
        previous_seq=None,
        source_entry_count=2,
        source_token_count=2,
        covered_turn_count=2,
        covered_token_count=2,
        token_count=1,
        method="NORMAL",
        model="",
        run_id="",
    )
    async with database.transaction(key.tenant_id) as connection:
        await summary_store.insert_summary(connection, key, summary, "")
    return True


async def _nowhere(database: Database, key: Key, first: Append) -> object:
    return await _queued(database, _append(Key(key.tenant_id, "ses_none"))) == "NOT_FOUND"


Operation = Callable[[Database, Key, Append], Awaitable[object]]

OPERATIONS: dict[str, tuple[Operation, int]] = {
    "a creation": (_create, 1),
    "a claim": (_acquire, 1),
    "a claim that is too low": (_acquire_lost, 1),
    "a release": (_release, 1),
    "a piece of a draft": (_drafted, 1),
    "a window": (_scan, 1),
    "an append": (_made, 1),
    "an append and a label": (_labelled, 2),
    "an append that waits": (_waiting, 1),
    "an append under a lost claim": (_lost, 1),
    "an append that waits, under a lost claim": (_waiting_lost, 2),
    "an append under other settings": (_other_settings, 1),
    "a repeated append": (_replayed, 2),
    "a repeated append under a lost claim": (_replayed_after_takeover, 2),
    "a label on nothing": (_no_target, 2),
    "an append to no transcript": (_nowhere, 2),
    "a summary with the job that publishes it": (_summarized, 3),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_takes_this_number_of_round_trips(
    session: Session, one_connection: Database, tmp_path: Path, name: str
) -> None:
    key, (work, expected) = Key(session.tenant_id, session.session_id), OPERATIONS[name]
    await writer_store.acquire_writer(one_connection, key, CLAIM)
    first = _append(key)
    await append_store.append_waiting(one_connection, first)

    async def operation() -> None:
        assert await work(one_connection, key, first)

    assert await _round_trips(one_connection, tmp_path / "trace", operation()) == expected


async def test_a_window_that_is_refused_undoes_no_transaction(
    session: Session, one_connection: Database, tmp_path: Path
) -> None:
    """A connection whose transaction was undone plans all of its statements anew."""
    key, blobs = Key(session.tenant_id, session.session_id), cast(BlobStore, None)
    wanted = ContextRequest("", 1000, 0, (), TailLimits())
    await writer_store.acquire_writer(one_connection, key, CLAIM)

    async def refused_window() -> None:
        with pytest.raises(MeshError):
            await assemble(one_connection, blobs, key, wanted, LOST)

    assert await _round_trips(one_connection, tmp_path / "trace", refused_window()) > 0
    assert "ROLLBACK" not in (tmp_path / "trace").read_text().upper()
