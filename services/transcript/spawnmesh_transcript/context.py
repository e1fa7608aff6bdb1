"""Chooses what of a transcript is read, by a scan from its newest entry: what it costs follows what is chosen, not what is stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_postgres.database import Connection

from spawnmesh_transcript import store
from spawnmesh_transcript.domain.dropped import LeftOut, begin_of, left_out
from spawnmesh_transcript.domain.entries import Label
from spawnmesh_transcript.domain.pairing import Paired, pair
from spawnmesh_transcript.domain.selection import Selection, select
from spawnmesh_transcript.domain.tier import TailLimits, Tiered, begin_at_step, place, with_stubs
from spawnmesh_transcript.domain.turns import Group, Role, Turn
from spawnmesh_transcript.payload_store import ScannedStub, scan_stubs
from spawnmesh_transcript.store import Key, ScannedEntry, Transcript
from spawnmesh_transcript.synthetic import synthetic_token_count

_SPARE_ROWS = 64  # Read beyond what the budget needs at the transcript's mean, so that one scan is mostly enough.


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is read, oldest first. `unmatched_count` is the number of results that answer nothing, or what has its answer."""

    groups: tuple[Group, ...]
    unmatched_count: int
    stubbed: frozenset[int] = frozenset()
    """Seqs of the results that are read as references."""
    left_out: tuple[LeftOut, ...] = ()
    """What is missing from `begin_seq` on, where there is a tier."""
    begin_seq: int = 0
    """From which seq on the groups have all that can be read; 0 where they have all that there is."""
    has_waiting_stubs: bool = False
    """Whether there are references that may not be used yet."""


async def choose_context(
    connection: Connection, key: Key, transcript: Transcript, *, token_budget: int, tail: TailLimits | None
) -> Chosen:
    """Messages and notes for a model: the newest that fit the budget, and the newest user message in any case.

    With limits of a tail, large results behind it are read as references.
    """
    always = await store.newest_user_turn(connection, key)
    return await _choose(
        connection,
        key,
        transcript,
        token_budget=token_budget,
        always=always,
        with_notes=True,
        up_to_seq=transcript.head.seq,
        tail=tail,
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
        tail=None,
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
    tail: TailLimits | None,
) -> Chosen:
    scanned: list[ScannedEntry] = []
    stubs: list[ScannedStub] = []
    before_seq = up_to_seq + 1
    row_count = _rows_for(
        token_budget * (2 if tail else 1), transcript
    )  # What has references takes about twice as many.
    while True:
        rows = await store.scan_entries(connection, key, before_seq=before_seq, row_count=row_count)
        if tail and rows:
            stubs += await scan_stubs(connection, key, first_seq=rows[-1].seq, last_seq=rows[0].seq)
        scanned += rows
        is_whole = len(rows) < row_count
        paired = pair(_turns(scanned, with_notes=with_notes))
        if tail:
            tiered, selection = _select_tiered(scanned, stubs, paired, transcript, tail, token_budget, always)
        else:
            tiered, selection = Tiered(paired.groups, frozenset()), _select(paired.groups, token_budget, always)
        if selection.is_full or is_whole:
            # Below a scan that ended early, a result without a call may yet have one: it counts as what did not fit.
            begin_seq = begin_of(selection.groups, always) if selection.is_full else 0
            unmatched = (*paired.duplicates, *(paired.orphans if is_whole else ()))
            return Chosen(
                selection.groups,
                len(unmatched),
                tiered.stubbed,
                left_out(_superseded(scanned), [turn.seq for turn in unmatched], begin_seq=begin_seq) if tail else (),
                begin_seq,
                any(not stub.is_stored for stub in stubs),
            )
        before_seq = rows[-1].seq
        row_count *= 2


def _select(groups: Sequence[Group], token_budget: int, always: Turn | None) -> Selection:
    return select(groups, token_budget=token_budget, always=always, missing_result_token_count=synthetic_token_count())


def _select_tiered(
    scanned: Sequence[ScannedEntry],
    stubs: Sequence[ScannedStub],
    paired: Paired,
    transcript: Transcript,
    tail: TailLimits,
    token_budget: int,
    always: Turn | None,
) -> tuple[Tiered, Selection]:
    placed = place(
        [entry.turn for entry in scanned if entry.turn],
        turn_count=transcript.turn_count,
        token_count=transcript.token_count,
        limits=tail,
    )
    token_counts = {stub.seq: stub.token_count for stub in stubs if stub.is_stored}
    tiered = with_stubs(paired.groups, token_counts, stale_seq=placed.stale_seq)
    selection = _select(tiered.groups, token_budget, always)
    return tiered, begin_at_step(selection, placed, always=always)


def _rows_for(token_budget: int, transcript: Transcript) -> int:
    needed = token_budget * transcript.head.seq * 5 // 4 // max(transcript.token_count, 1) + _SPARE_ROWS
    return min(needed, transcript.head.seq + 1)


def _turns(scanned: Sequence[ScannedEntry], *, with_notes: bool) -> list[Turn]:
    """The turns to choose from, oldest first. A mark is newer than what it marks, so the scan has seen every mark on what it has seen."""
    superseded = _superseded(scanned)
    return [
        entry.turn
        for entry in reversed(scanned)
        if entry.turn and entry.seq not in superseded and (with_notes or entry.turn.role is not Role.NOTE)
    ]


def _superseded(scanned: Sequence[ScannedEntry]) -> set[int]:
    return {entry.mark.target_seq for entry in scanned if entry.mark and entry.mark.label is Label.SUPERSEDED}
