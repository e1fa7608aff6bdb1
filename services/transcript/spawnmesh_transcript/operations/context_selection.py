"""Select what of a transcript is read, by a scan from its newest entry: its cost depends on what
is selected, not on what is stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spawnmesh_postgres.database import Connection

from spawnmesh_transcript.domain.compaction import is_worth_it, unsplit_end
from spawnmesh_transcript.domain.entries import Label
from spawnmesh_transcript.domain.left_out import LeftOut, begin_of, left_out
from spawnmesh_transcript.domain.pairing import Paired, pair
from spawnmesh_transcript.domain.refusals import fork_seq_beyond_end, fork_splits_call
from spawnmesh_transcript.domain.selection import Selection, Share, select
from spawnmesh_transcript.domain.stale_results import (
    Reference,
    TailLimits,
    Tiered,
    begin_at_step,
    newest_stale,
    position_turns,
    stale_up_to,
    with_stubs,
)
from spawnmesh_transcript.domain.token_vocabularies import Measure
from spawnmesh_transcript.domain.transcripts import Key, Transcript
from spawnmesh_transcript.domain.turns import Group, Role, Turn, calls_without_result, measured, turns_of
from spawnmesh_transcript.operations.bodies.synthetic_results import synthetic_token_count
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store.context_heads import ContextHead
from spawnmesh_transcript.store.entries import ScannedEntry
from spawnmesh_transcript.store.payloads import ScannedStub, scan_stubs
from spawnmesh_transcript.store.summaries import Summary

_SPARE_ROWS = 64  # Read beyond the budget's share of the rows, so that one scan usually suffices.


@dataclass(frozen=True, slots=True)
class StalePrefix:
    """The part of a transcript that is no longer fresh: up to `seq`, 0 if all is fresh.

    `is_compactable` is set if enough of it is in no summary yet.
    """

    seq: int = 0
    is_compactable: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected groups, oldest first.

    `unmatched_count` is the number of results that answer no call, or a call that has its result.
    """

    groups: tuple[Group, ...]
    unmatched_count: int
    stubbed: frozenset[int] = frozenset()
    """Seqs of the entries that are read by reference or condensed."""
    left_out: tuple[LeftOut, ...] = ()
    """The entries missing from `begin_seq` on; only with the tier."""
    begin_seq: int = 0
    """The seq from which on the groups have everything that can be read; 0 if nothing is missing.
    """
    has_waiting_stubs: bool = False
    """True if there are references whose payloads are not uploaded yet."""
    summary: Summary | None = None
    """The summary that is read before the groups, in place of all that it covers."""
    stale: StalePrefix = StalePrefix()
    full_turns: Mapping[int, Turn] = field(default_factory=dict)
    """The complete turns, by seq, that are read by reference or condensed."""
    thinking: Mapping[int, int] = field(default_factory=dict)
    """The stored tokens of thinking, by seq, in the condensed messages that are read without it."""
    cut: Mapping[int, Share] = field(default_factory=dict)
    """The share of each result, by seq, that is read only in part."""
    counted_by: frozenset[str] = frozenset()
    """The vocabularies by which the stored counts of the selected entries were made."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The limits of a selection. The defaults are those of a fork."""

    token_budget: int
    up_to_seq: int
    measure: Measure | None = None
    """The tokens of the budget; None for tokens as they are stored."""
    always: Turn | None = None
    """A message that is included even if it does not fit."""
    cut_newest_results: bool = False
    with_notes: bool = False
    summary: Summary | None = None
    tail: TailLimits | None = None
    with_references: bool = False
    is_condensed: bool = False
    """Set if old messages are read condensed."""
    superseded: frozenset[int] = frozenset()
    """Messages that marks behind `up_to_seq` supersede."""

    @property
    def covered_seq(self) -> int:
        """Return the newest seq that the summary covers, 0 without a summary."""
        return self.summary.last_source_seq if self.summary else 0


async def choose_context(
    connection: Connection,
    key: Key,
    head: ContextHead,
    *,
    token_budget: int,
    measure: Measure,
    tail: TailLimits,
) -> Chosen:
    """Select the newest summary, and the newest messages and notes after it that fit the budget.

    The newest user message is always included, and so are the newest results, unless messages
    after them take the budget: results that do not fit are cut. The budget may be 0 or negative,
    if more is reserved than there is. MAX_CONTEXT_BYTES limits the bodies as they are read. The
    budget is in the measure, as are all counts of the result; freshness is decided by the stored
    counts. With the tier, large results that are no longer fresh are read as references, and if
    the transcript does not fit, all old messages are read condensed. Whether it fits is decided by
    its total, in tokens of the policy's vocabulary: the total only grows, so a context that is
    condensed once stays so. A summary that does not fit beside the user message is
    skipped, and the entries that it covers are selected from instead.
    """
    transcript, policy = head.transcript, head.policy
    always = measured(head.newest_user_turn, measure) if head.newest_user_turn else None
    summary, summary_counted_by = head.summary, ""
    if summary:
        summary, summary_counted_by = await _measured_summary(connection, key, summary, measure)
    if summary and summary.token_count + (always.token_count if always else 0) > token_budget:
        summary = None
    remaining = token_budget - (summary.token_count if summary else 0)
    total = transcript.token_count - (summary.covered_token_count if summary else 0)
    wanted = _Wanted(
        token_budget=remaining,
        up_to_seq=transcript.head.seq,
        measure=measure,
        always=always,
        cut_newest_results=True,
        with_notes=True,
        summary=summary,
        tail=tail,
        with_references=policy.stub_large_tool_payloads,
        is_condensed=policy.stub_large_tool_payloads
        and measure.of(total, policy.token_vocabulary) > remaining,
    )
    chosen = await _choose(connection, key, transcript, wanted)
    return replace(chosen, counted_by=chosen.counted_by | {summary_counted_by}) if summary else chosen


async def choose_fork(
    connection: Connection, key: Key, transcript: Transcript, *, max_token_count: int, up_to_seq: int
) -> Chosen:
    """Select the newest messages up to a seq that fit the limit and MAX_CONTEXT_BYTES, for a copy.

    Notes and summaries are left out: they concern this session alone. Messages that were superseded
    are left out, whenever that was. Raises FORK_SEQ_REFUSED for a seq beyond the last entry, or
    between a call and its result.
    """
    last_seq = transcript.head.seq
    if up_to_seq > last_seq:
        raise fork_seq_beyond_end(up_to_seq, last_seq)
    wanted = _Wanted(token_budget=max_token_count, up_to_seq=up_to_seq)
    chosen = await _choose(connection, key, transcript, wanted)
    if up_to_seq == last_seq:
        return chosen
    calls = calls_without_result(chosen.groups)
    behind = await entry_store.read_behind_fork(connection, key, seq=up_to_seq, calls=calls)
    if behind.superseded_seqs:
        wanted = replace(wanted, superseded=behind.superseded_seqs)
        chosen = await _choose(connection, key, transcript, wanted)
    for call_id in calls_without_result(chosen.groups):
        if call_id in behind.answered_calls:
            raise fork_splits_call(up_to_seq, call_id)
    return chosen


async def _measured_summary(
    connection: Connection, key: Key, summary: Summary, measure: Measure
) -> tuple[Summary, str]:
    """Return the summary with its count in the measure, and the vocabulary of its stored count."""
    counted_by = (await entry_store.read_token_vocabularies(connection, key, [summary.seq]))[summary.seq]
    return replace(summary, token_count=measure.of(summary.token_count, counted_by)), counted_by


async def _choose(connection: Connection, key: Key, transcript: Transcript, wanted: _Wanted) -> Chosen:
    """Scan from the newest entry until the budget is full or everything is scanned."""
    scanned: list[ScannedEntry] = []
    references: list[ScannedStub] = []
    before_seq, row_count = wanted.up_to_seq + 1, _first_row_count(transcript, wanted)
    while True:
        rows = await entry_store.scan_entries(
            connection, key, after_seq=wanted.covered_seq, before_seq=before_seq, row_count=row_count
        )
        if wanted.with_references and rows:
            references += await scan_stubs(connection, key, first_seq=rows[-1].seq, last_seq=rows[0].seq)
        scanned += rows
        reached_end = len(rows) < row_count
        paired = pair(_turns(scanned, wanted))
        tiered, selection = _select(scanned, references, paired, transcript, wanted)
        if selection.is_full or reached_end:
            break
        before_seq = rows[-1].seq
        row_count *= 2
    begin_seq = begin_of(selection.groups, wanted.always) if selection.is_full else 0
    # If the scan ended early, the call of an orphan may be older: the orphan counts as dropped.
    unmatched = (*paired.duplicates, *(paired.orphans if reached_end else ()))
    gaps: tuple[LeftOut, ...] = ()
    if wanted.with_references:
        gaps = left_out(
            _superseded(scanned),
            [turn.seq for turn in unmatched],
            begin_seq=max(begin_seq, wanted.covered_seq + 1),
        )
    return Chosen(
        selection.groups,
        len(unmatched),
        tiered.stubbed,
        gaps,
        begin_seq,
        any(not reference.is_stored for reference in references),
        wanted.summary,
        _stale_prefix(scanned, paired.groups, transcript, wanted, reached_end=reached_end),
        _full_turns(paired.groups, tiered.stubbed),
        {
            one.seq: thinking
            for one in references
            if one.seq in tiered.stubbed and (thinking := _thinking_left_out(one, wanted))
        },
        {seq: share for seq, share in selection.cut.items() if seq not in tiered.stubbed},
        _counted_by(scanned, selection.groups),
    )


def _first_row_count(transcript: Transcript, wanted: _Wanted) -> int:
    """Return how many rows the budget probably needs, by the transcript's mean tokens of an entry.

    A context with references takes about twice as many, and a condensed one up to three times.
    """
    budget = max(wanted.token_budget, 0) * (1 + wanted.with_references + wanted.is_condensed)
    needed = budget * transcript.head.seq * 5 // 4 // max(transcript.token_count, 1) + _SPARE_ROWS
    return min(needed, transcript.head.seq + 1)


def _turns(scanned: Sequence[ScannedEntry], wanted: _Wanted) -> list[Turn]:
    """Return the turns to select from, oldest first, with their counts in the measure.

    A mark is newer than its target, so the scan has seen every mark on what it has seen.
    """
    superseded = wanted.superseded | _superseded(scanned)
    turns = [
        entry.turn
        for entry in reversed(scanned)
        if entry.turn
        and entry.seq not in superseded
        and (wanted.with_notes or entry.turn.role is not Role.NOTE)
    ]
    measure = wanted.measure
    if measure is None:
        return turns
    own = measure.own  # A plain string: thousands of turns are compared with it.
    return [turn if turn.counted_by == own else measured(turn, measure) for turn in turns]


def _select(
    scanned: Sequence[ScannedEntry],
    references: Sequence[ScannedStub],
    paired: Paired,
    transcript: Transcript,
    wanted: _Wanted,
) -> tuple[Tiered, Selection]:
    """Select groups within the budget, with references in place of stale large results if
    wanted.
    """
    if not (wanted.with_references and wanted.tail):
        return Tiered(paired.groups, frozenset()), _select_groups(paired.groups, wanted)
    positions = position_turns(
        [entry.turn for entry in scanned if entry.turn],
        turn_count=transcript.turn_count,
        token_count=transcript.token_count,
        limits=wanted.tail,
    )
    usable = _usable(references, scanned, wanted)
    tiered = with_stubs(paired.groups, usable, stale_seq=positions.stale_seq, always=wanted.always)
    selection = _select_groups(tiered.groups, wanted)
    return tiered, begin_at_step(selection, positions, always=wanted.always)


def _select_groups(groups: Sequence[Group], wanted: _Wanted) -> Selection:
    measure = wanted.measure
    return select(
        groups,
        token_budget=wanted.token_budget,
        always=wanted.always,
        cut_newest_results=wanted.cut_newest_results,
        missing_result_token_count=synthetic_token_count(measure) if measure else synthetic_token_count(),
    )


def _usable(
    references: Sequence[ScannedStub], scanned: Sequence[ScannedEntry], wanted: _Wanted
) -> dict[int, Reference]:
    """Return the references whose payloads are uploaded, and condensed messages if these are
    wanted, by seq, with counts in the measure.

    A reference is counted by the vocabulary of its entry.
    """
    measure = wanted.measure
    stored = {
        one.seq: Reference(one.token_count - _thinking_left_out(one, wanted), one.size_bytes)
        for one in references
        if one.is_stored and (wanted.is_condensed or not one.is_condensed)
    }
    if measure is None or not stored:
        return stored
    counted_by = {turn.seq: turn.counted_by for entry in scanned if (turn := entry.turn)}
    return {
        seq: Reference(measure.of(one.token_count, counted_by[seq]), one.size_bytes)
        for seq, one in stored.items()
    }


def _thinking_left_out(stub: ScannedStub, wanted: _Wanted) -> int:
    """Return the tokens of thinking that are left out of a condensed message.

    The thinking since the newest user message stays: providers want it in a loop of tool calls.
    """
    is_before_loop = wanted.always is not None and stub.seq < wanted.always.seq
    return stub.thinking_token_count if is_before_loop else 0


def _stale_prefix(
    scanned: Sequence[ScannedEntry],
    groups: Sequence[Group],
    transcript: Transcript,
    wanted: _Wanted,
    *,
    reached_end: bool,
) -> StalePrefix:
    """Return the stale part of the transcript, nothing without limits of the fresh tail."""
    tail, summary = wanted.tail, wanted.summary
    if tail is None:
        return StalePrefix()
    turns = [entry.turn for entry in scanned if entry.turn]
    totals = transcript.turn_count, transcript.token_count
    seq = newest_stale(turns, turn_count=totals[0], token_count=totals[1], limits=tail)
    if reached_end:
        end_seq = unsplit_end(groups, seq)
        superseded = _superseded(scanned)
        is_compactable = is_worth_it(
            turn for turn in turns if turn.seq <= end_seq and turn.seq not in superseded
        )
    else:  # The totals tell what is older than the scan.
        turn_count, token_count = stale_up_to(*totals, tail)
        is_compactable = seq > 0 or (
            turn_count > (summary.covered_turn_count if summary else 0)
            or token_count > (summary.covered_token_count if summary else 0)
        )
    return StalePrefix(seq or wanted.covered_seq, is_compactable)


def _counted_by(scanned: Sequence[ScannedEntry], groups: Sequence[Group]) -> frozenset[str]:
    """Return the vocabularies by which the groups were counted."""
    vocabularies = {entry.turn.counted_by for entry in scanned if entry.turn}
    # The user's message may be older than the scan.
    vocabularies |= {group.head.counted_by for group in groups[:1]}
    if len(vocabularies) == 1 and groups:  # Usually: a pass over thousands of groups takes longer.
        return frozenset(vocabularies)
    return frozenset(turn.counted_by for turn in turns_of(groups))


def _full_turns(groups: Sequence[Group], stubbed: frozenset[int]) -> dict[int, Turn]:
    if not stubbed:
        return {}
    return {turn.seq: turn for turn in turns_of(groups) if turn.seq in stubbed}


def _superseded(scanned: Sequence[ScannedEntry]) -> set[int]:
    return {entry.mark.target_seq for entry in scanned if entry.mark and entry.mark.label is Label.SUPERSEDED}
