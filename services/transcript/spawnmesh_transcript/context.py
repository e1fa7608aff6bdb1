"""Chooses what of a transcript is read, by a scan from its newest entry: what it costs follows what is chosen, not what is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spawnmesh_postgres.database import Connection

from spawnmesh_transcript import store, summary_store
from spawnmesh_transcript.context_store import ScannedReference, scan_references
from spawnmesh_transcript.domain.compaction import is_worth_it, whole_end
from spawnmesh_transcript.domain.dropped import LeftOut, begin_of, left_out
from spawnmesh_transcript.domain.entries import Label
from spawnmesh_transcript.domain.families import Measure
from spawnmesh_transcript.domain.pairing import Paired, pair
from spawnmesh_transcript.domain.selection import Selection, select
from spawnmesh_transcript.domain.tier import (
    Reference,
    TailLimits,
    Tiered,
    begin_at_step,
    newest_stale,
    place,
    stale_up_to,
    with_stubs,
)
from spawnmesh_transcript.domain.turns import Group, Role, Turn, measured, turns_of
from spawnmesh_transcript.store import Key, ScannedEntry, Transcript
from spawnmesh_transcript.summary_store import Summary
from spawnmesh_transcript.synthetic import synthetic_token_count

_SPARE_ROWS = 64  # Read beyond what the budget needs at the transcript's mean, so that one scan is mostly enough.


@dataclass(frozen=True, slots=True)
class Stale:
    """What is no longer fresh: up to `seq`, 0 where all is fresh. `is_compactable` where enough of it is in no summary yet."""

    seq: int = 0
    is_compactable: bool = False


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
    summary: Summary | None = None
    """What is read before them, in place of all that it covers."""
    stale: Stale = Stale()
    full_token_counts: Mapping[int, int] = field(default_factory=dict)
    """By seq, what the results that are read as references count whole."""
    counted_by: frozenset[str] = frozenset()
    """The vocabularies that what is read was counted by when it was stored."""


async def choose_context(
    connection: Connection,
    key: Key,
    transcript: Transcript,
    *,
    token_budget: int,
    measure: Measure,
    tail: TailLimits,
    with_references: bool,
) -> Chosen:
    """The summary that holds, and messages and notes behind it: the newest that fit the budget, and the newest user message in any case.

    The budget may be nothing, or less where more is set aside than there is. Beside it stands MAX_CONTEXT_BYTES, of bodies as they are read.
    The budget is in the measure, and so are the counts of all that is chosen. What is fresh is told by the counts that are stored.
    `with_references`, large results that are no longer fresh are read so. A summary that does not fit beside the user's message is not read, and
    then what it covers is chosen from, too.
    """
    newest = await store.newest_user_turn(connection, key)
    always = measured(newest, measure) if newest else None
    summary, summary_counted_by = await _measured_summary(connection, key, measure)
    if summary and summary.token_count + (always.token_count if always else 0) > token_budget:
        summary = None
    chosen = await _choose(
        connection,
        key,
        transcript,
        token_budget=token_budget - (summary.token_count if summary else 0),
        measure=measure,
        always=always,
        with_notes=True,
        up_to_seq=transcript.head.seq,
        summary=summary,
        tail=tail,
        with_references=with_references,
    )
    return replace(chosen, counted_by=chosen.counted_by | {summary_counted_by}) if summary else chosen


async def _measured_summary(connection: Connection, key: Key, measure: Measure) -> tuple[Summary | None, str]:
    """The summary that holds, with its count in the measure, and the vocabulary it was counted by."""
    summary = await summary_store.newest_summary(connection, key)
    if summary is None:
        return None, ""
    counted_by = (await store.token_vocabularies_of(connection, key, [summary.seq]))[summary.seq]
    return replace(summary, token_count=measure.of(summary.token_count, counted_by)), counted_by


async def choose_fork(
    connection: Connection, key: Key, transcript: Transcript, *, max_token_count: int, up_to_seq: int
) -> Chosen:
    """Messages for another session: the newest that fit the cap and MAX_CONTEXT_BYTES, of those up to a seq, as if there were none behind it.

    Notes stay, since they speak of what this session alone has; and summaries, since what they were made of is here.
    """
    return await _choose(
        connection,
        key,
        transcript,
        token_budget=max_token_count,
        measure=None,
        always=None,
        with_notes=False,
        up_to_seq=up_to_seq,
        summary=None,
        tail=None,
        with_references=False,
    )


async def _choose(
    connection: Connection,
    key: Key,
    transcript: Transcript,
    *,
    token_budget: int,
    measure: Measure | None,
    always: Turn | None,
    with_notes: bool,
    up_to_seq: int,
    summary: Summary | None,
    tail: TailLimits | None,
    with_references: bool,
) -> Chosen:
    scanned: list[ScannedEntry] = []
    references: list[ScannedReference] = []
    covered_seq = summary.last_source_seq if summary else 0
    before_seq = up_to_seq + 1
    row_count = _rows_for(
        token_budget * (2 if with_references else 1), transcript
    )  # What has references takes about twice as many.
    while True:
        rows = await store.scan_entries(
            connection, key, after_seq=covered_seq, before_seq=before_seq, row_count=row_count
        )
        if with_references and rows:
            references += await scan_references(connection, key, first_seq=rows[-1].seq, last_seq=rows[0].seq)
        scanned += rows
        is_whole = len(rows) < row_count
        paired = pair(_turns(scanned, measure, with_notes=with_notes))
        if with_references and tail:
            tiered, selection = _select_tiered(
                scanned, references, paired, transcript, tail, token_budget, measure, always
            )
        else:
            tiered = Tiered(paired.groups, frozenset())
            selection = _select(paired.groups, token_budget, measure, always)
        if selection.is_full or is_whole:
            # Below a scan that ended early, a result without a call may yet have one: it counts as what did not fit.
            begin_seq = begin_of(selection.groups, always) if selection.is_full else 0
            unmatched = (*paired.duplicates, *(paired.orphans if is_whole else ()))
            gaps: tuple[LeftOut, ...] = ()
            if with_references:
                seqs = [turn.seq for turn in unmatched]
                gaps = left_out(_superseded(scanned), seqs, begin_seq=max(begin_seq, covered_seq + 1))
            return Chosen(
                selection.groups,
                len(unmatched),
                tiered.stubbed,
                gaps,
                begin_seq,
                any(not reference.is_stored for reference in references),
                summary,
                _stale(scanned, paired.groups, transcript, tail, summary, is_whole=is_whole) if tail else Stale(),
                _full_token_counts(paired.groups, tiered.stubbed),
                _counted_by(scanned, selection.groups),
            )
        before_seq = rows[-1].seq
        row_count *= 2


def _stale(
    scanned: Sequence[ScannedEntry],
    groups: Sequence[Group],
    transcript: Transcript,
    tail: TailLimits,
    summary: Summary | None,
    *,
    is_whole: bool,
) -> Stale:
    """What is stale of a transcript, of which all that no summary covers was scanned, or its end."""
    turns = [entry.turn for entry in scanned if entry.turn]
    totals = transcript.turn_count, transcript.token_count
    seq = newest_stale(turns, turn_count=totals[0], token_count=totals[1], limits=tail)
    if is_whole:
        end_seq = whole_end(groups, seq)
        superseded = _superseded(scanned)
        is_compactable = is_worth_it(turn for turn in turns if turn.seq <= end_seq and turn.seq not in superseded)
    else:  # The rest is below the scan.
        turn_count, token_count = stale_up_to(*totals, tail)
        is_compactable = seq > 0 or (
            turn_count > (summary.covered_turn_count if summary else 0)
            or token_count > (summary.covered_token_count if summary else 0)
        )
    return Stale(seq or (summary.last_source_seq if summary else 0), is_compactable)


def _counted_by(scanned: Sequence[ScannedEntry], groups: Sequence[Group]) -> frozenset[str]:
    """The vocabularies that the groups, of what was scanned, were counted by."""
    vocabularies = {entry.turn.counted_by for entry in scanned if entry.turn}
    vocabularies |= {
        group.head.counted_by for group in groups[:1]
    }  # The user's message may be older than what was scanned.
    if len(vocabularies) == 1 and groups:  # As a rule; going through thousands of groups takes longer.
        return frozenset(vocabularies)
    return frozenset(turn.counted_by for turn in turns_of(groups))


def _full_token_counts(groups: Sequence[Group], stubbed: frozenset[int]) -> dict[int, int]:
    if not stubbed:
        return {}
    return {turn.seq: turn.token_count for turn in turns_of(groups) if turn.seq in stubbed}


def _select(groups: Sequence[Group], token_budget: int, measure: Measure | None, always: Turn | None) -> Selection:
    missing_token_count = synthetic_token_count(measure) if measure else synthetic_token_count()
    return select(groups, token_budget=token_budget, always=always, missing_result_token_count=missing_token_count)


def _select_tiered(
    scanned: Sequence[ScannedEntry],
    references: Sequence[ScannedReference],
    paired: Paired,
    transcript: Transcript,
    tail: TailLimits,
    token_budget: int,
    measure: Measure | None,
    always: Turn | None,
) -> tuple[Tiered, Selection]:
    placed = place(
        [entry.turn for entry in scanned if entry.turn],
        turn_count=transcript.turn_count,
        token_count=transcript.token_count,
        limits=tail,
    )
    tiered = with_stubs(paired.groups, _usable(references, scanned, measure), stale_seq=placed.stale_seq)
    selection = _select(tiered.groups, token_budget, measure, always)
    return tiered, begin_at_step(selection, placed, always=always)


def _usable(
    references: Sequence[ScannedReference], scanned: Sequence[ScannedEntry], measure: Measure | None
) -> dict[int, Reference]:
    """The references that may be used, by their entries' seqs; they were counted by the vocabulary of their entries."""
    stored = {one.seq: Reference(one.token_count, one.size_bytes) for one in references if one.is_stored}
    if measure is None or not stored:
        return stored
    counted_by = {turn.seq: turn.counted_by for entry in scanned if (turn := entry.turn)}
    return {seq: Reference(measure.of(one.token_count, counted_by[seq]), one.size_bytes) for seq, one in stored.items()}


def _rows_for(token_budget: int, transcript: Transcript) -> int:
    needed = max(token_budget, 0) * transcript.head.seq * 5 // 4 // max(transcript.token_count, 1) + _SPARE_ROWS
    return min(needed, transcript.head.seq + 1)


def _turns(scanned: Sequence[ScannedEntry], measure: Measure | None, *, with_notes: bool) -> list[Turn]:
    """The turns to choose from, oldest first, with their counts in the measure, if there is one.

    A mark is newer than what it marks, so the scan has seen every mark on what it has seen.
    """
    superseded = _superseded(scanned)
    turns = [
        entry.turn
        for entry in reversed(scanned)
        if entry.turn and entry.seq not in superseded and (with_notes or entry.turn.role is not Role.NOTE)
    ]
    if measure is None:
        return turns
    own = measure.own  # A plain text, since there are thousands to compare.
    return [turn if turn.counted_by == own else measured(turn, measure) for turn in turns]


def _superseded(scanned: Sequence[ScannedEntry]) -> set[int]:
    return {entry.mark.target_seq for entry in scanned if entry.mark and entry.mark.label is Label.SUPERSEDED}
