"""Drafts: the answer that the writer's model is giving."""

from dataclasses import dataclass
from itertools import accumulate

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.drafts import (
    MAX_DRAFT_BYTES,
    MAX_ENTRIES_MEANWHILE,
    MAX_PIECES,
    DraftCall,
    DraftId,
    LiveDraft,
    OutputKind,
    Piece,
    StoredPiece,
    WrittenPieces,
)
from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store.rows import head_of, key_parameters
from spawnmesh_transcript.store.tenants import join_writers_statement

_SQL = load_statements(__name__)
_WITHOUT_FLUSH: Statement = ("set local synchronous_commit = off", {})
"""A piece that is lost with the server's memory is written again: its writer has the text."""


@dataclass(frozen=True, slots=True)
class Written:
    """The head of the transcript, the bytes that the draft has, and whether it may grow."""

    head: Head
    end_offset: int
    is_open: bool


async def write_draft(database: Database, key: Key, written: WrittenPieces) -> Written | None:
    """Add the pieces if they follow the newest one of their draft, in one round trip.

    Returns None if there is no transcript.
    """
    sizes = [piece.size for piece in written.pieces]
    ends = list(accumulate(sizes, initial=written.offset))
    parameters = key_parameters(
        key,
        run_id=written.draft.run_id,
        epoch=written.draft.epoch,
        number=written.draft.number,
        after_seq=written.after_seq,
        model=written.model,
        offset=written.offset,
        end_offset=written.end_offset,
        begins=ends[:-1],
        ends=ends[1:],
        kinds=[piece.kind.value for piece in written.pieces],
        call_ids=[piece.call.tool_call_id if piece.call is not None else "" for piece in written.pieces],
        names=[piece.call.name if piece.call is not None else "" for piece in written.pieces],
        begin_calls=[piece.begins_call for piece in written.pieces],
        texts=[piece.text for piece in written.pieces],
        count=len(written.pieces),
        max_bytes=MAX_DRAFT_BYTES,
        max_pieces=MAX_PIECES,
        max_entries=MAX_ENTRIES_MEANWHILE,
    )
    *_, rows = await database.transact(
        key.tenant_id,
        _WITHOUT_FLUSH,
        join_writers_statement(key.tenant_id),
        (_SQL["write_draft"], parameters),
    )
    if not rows:
        return None
    row = rows[0]
    return Written(head_of(row), row["end_offset"], row["is_open"])


async def read_draft(
    connection: Connection, key: Key, claim: WriterClaim, known: DraftId | None, offset: int
) -> LiveDraft | None:
    """Return the valid draft of the current claim, with its pieces from the offset on if it is the
    known one, and with all of them otherwise; None if there is no draft.
    """
    parameters = key_parameters(
        key,
        writer_run_id=claim.run_id,
        writer_epoch=claim.epoch,
        epoch=known.epoch if known is not None else 0,
        number=known.number if known is not None else 0,
        offset=offset,
    )
    rows = await (await connection.execute(_SQL["read_draft"], parameters, binary=True)).fetchall()
    if not rows:
        return None
    first = rows[0]
    return LiveDraft(
        DraftId(claim.run_id, claim.epoch, first["number"]),
        first["model"],
        tuple(StoredPiece(row["begin_offset"], _piece(row)) for row in rows if row["text"] is not None),
    )


def _piece(row: Row) -> Piece:
    kind = OutputKind(row["kind"])
    call = DraftCall(row["tool_call_id"], row["tool_name"]) if kind is OutputKind.TOOL_CALL else None
    return Piece(kind, row["text"], call, row["begins_call"])
