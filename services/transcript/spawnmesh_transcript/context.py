"""Chooses what of a transcript is read, by a scan from its newest entry: what it costs follows what is chosen, not what is stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_postgres.database import Connection

from spawnmesh_transcript import store
from spawnmesh_transcript.domain.entries import Label
from spawnmesh_transcript.domain.pairing import pair
from spawnmesh_transcript.domain.selection import select
from spawnmesh_transcript.domain.turns import Group, Role, Turn
from spawnmesh_transcript.store import Key, ScannedEntry, Transcript
from spawnmesh_transcript.synthetic import synthetic_token_count

_SPARE_ROWS = 64  # Read beyond what the budget needs at the transcript's mean, so that one scan is mostly enough.


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is read, oldest first. `unmatched_count` is the number of results that answer nothing, or what has its answer."""

    groups: tuple[Group, ...]
    unmatched_count: int


async def choose_context(connection: Connection, key: Key, transcript: Transcript, *, token_budget: int) -> Chosen:
    """Messages and notes for a model: the newest that fit the budget, and the newest user message in any case."""
    always = await store.newest_user_turn(connection, key)
    return await _choose(
        connection,
        key,
        transcript,
        token_budget=token_budget,
        always=always,
        with_notes=True,
        up_to_seq=transcript.head.seq,
    )


async def choose_fork(
    connection: Connection, key: Key, transcript: Transcript, *, max_token_count: int, up_to_seq: int
) -> Chosen:
    """Messages for another session: the newest that fit the cap, of those up to a seq, as if there were none behind it.

    Notes stay, since they speak of what this session alone has.
    """
    return await _choose(
        connection,
        key,
        transcript,
        token_budget=max_token_count,
        always=None,
        with_notes=False,
        up_to_seq=up_to_seq,
    )


async def _choose(
    connection: Connection,
    key: Key,
    transcript: Transcript,
    *,
    token_budget: int,
    always: Turn | None,
    with_notes: bool,
    up_to_seq: int,
) -> Chosen:
    scanned: list[ScannedEntry] = []
    before_seq = up_to_seq + 1
    row_count = _rows_for(token_budget, transcript)
    while True:
        rows = await store.scan_entries(connection, key, before_seq=before_seq, row_count=row_count)
        scanned += rows
        is_whole = len(rows) < row_count
        paired = pair(_turns(scanned, with_notes=with_notes))
        selection = select(
            paired.groups,
            token_budget=token_budget,
            always=always,
            missing_result_token_count=synthetic_token_count(),
        )
        if selection.is_full or is_whole:
            # Below a scan that ended early, a result without a call may yet have one: it counts as what did not fit.
            unmatched = len(paired.duplicates) + (len(paired.orphans) if is_whole else 0)
            return Chosen(selection.groups, unmatched)
        before_seq = rows[-1].seq
        row_count *= 2


def _rows_for(token_budget: int, transcript: Transcript) -> int:
    needed = token_budget * transcript.head.seq * 5 // 4 // max(transcript.token_count, 1) + _SPARE_ROWS
    return min(needed, transcript.head.seq + 1)


def _turns(scanned: Sequence[ScannedEntry], *, with_notes: bool) -> list[Turn]:
    """The turns to choose from, oldest first. A mark is newer than what it marks, so the scan has seen every mark on what it has seen."""
    superseded = {entry.mark.target_seq for entry in scanned if entry.mark and entry.mark.label is Label.SUPERSEDED}
    return [
        entry.turn
        for entry in reversed(scanned)
        if entry.turn and entry.seq not in superseded and (with_notes or entry.turn.role is not Role.NOTE)
    ]
