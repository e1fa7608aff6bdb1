"""Compaction of the transcript of a run, and its turn where a summary replaced the beginning."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.turn_progress import TurnProgress, turn_progress
from spawnmesh_client.unfinished_turn import is_own

DEFAULT_CONTEXT_TOKEN_BUDGET = 100_000
_MAX_FAILED_COUNT = 2
_FRESH_TOKENS, _FRESH_SHARE = 24_000, 4
# Every speaker except tools: their results are large and do not say which tools ran.
_SPEAKERS = (
    message_pb2.ROLE_USER,
    message_pb2.ROLE_ASSISTANT,
    message_pb2.ROLE_BASH_EXECUTION,
    message_pb2.ROLE_CUSTOM,
)
_log = logging.getLogger("spawnmesh_client.compaction")

EntriesBefore = Callable[[int, entry_pb2.EntryFilter, int], AsyncGenerator[entry_pb2.Entry, None]]
"""Yields the wanted entries before a seq, newest first, in pages of a size; 0 is the default."""
Compact = Callable[[pb.CompactAsWriterRequest], Awaitable[pb.CompactAsWriterResponse]]


def fresh_tail(context_token_budget: int) -> FreshTail:
    """Return the end of a context that is never summarized."""
    return FreshTail(token_count=fresh_tail_token_count(context_token_budget))


def fresh_tail_token_count(token_budget: int) -> int:
    """Return how many tokens at the end of a context are never summarized.

    With a small budget it is a quarter of the budget: otherwise nothing could ever be summarized.
    """
    return min(_FRESH_TOKENS, max(1, token_budget // _FRESH_SHARE))


@dataclass(slots=True)
class RunCompactions:
    """The compactions of one run. After a few failures the run waits for no more of them.

    `summarized_turns` keeps the part of the turn that a summary replaced, by the summary's last
    seq.
    """

    failed_count: int = 0
    summarized_turns: dict[int, list[entry_pb2.Entry]] = field(default_factory=dict)

    @property
    def may_try(self) -> bool:
        """Return whether another compaction is worth its time."""
        return self.failed_count < _MAX_FAILED_COUNT

    async def compact(
        self,
        request: pb.CompactAsWriterRequest,
        call: Compact,
        add_usage: Callable[[message_pb2.TokenUsage], None],
    ) -> bool:
        """Have the oldest part of the transcript summarized, outside of any prompt window.

        Return True if it was. A failure or a plugin's refusal does not fail the run. It is logged,
        and after a few failures the run stops trying. A budget that refuses it is no failure:
        raises MeshError SESSION_BUDGET_EXCEEDED, as the next answer would be refused too.
        """
        if not self.may_try:
            return False
        try:
            done = await call(request)
        except MeshError as error:
            if error.reason is Reason.SESSION_BUDGET_EXCEEDED:
                raise
            self.failed_count += 1
            _log.warning("the transcript was not compacted: %s", error.reason.value)
            return False
        if done.refused_by:
            self.failed_count += 1
            _log.info("the plugin %s refused a compaction", done.refused_by)
        add_usage(done.summary.body.compaction.sources.usage)
        return done.HasField("summary")

    async def current_turn(
        self,
        entries: Sequence[entry_pb2.Entry],
        run_id: str,
        may_have_run: Callable[[str], bool],
        entries_before: EntriesBefore,
    ) -> TurnProgress:
        """Describe the run's current turn, also where a summary covers its beginning."""
        covered_seq = max((entry.body.compaction.sources.last_seq for entry in entries), default=0)
        behind = [
            entry
            for entry in entries
            if not entry.body.HasField("compaction") and not 0 < entry.seq <= covered_seq
        ]
        turn = turn_progress(behind, run_id, may_have_run)
        if turn.begin_seq or not covered_seq:
            return turn
        if covered_seq not in self.summarized_turns:
            self.summarized_turns[covered_seq] = await _covered_turn(run_id, covered_seq, entries_before)
        return turn_progress([*self.summarized_turns[covered_seq], *behind], run_id, may_have_run)


async def _covered_turn(
    run_id: str, covered_seq: int, entries_before: EntriesBefore
) -> list[entry_pb2.Entry]:
    """Return the run's answers up to a seq and the other writer's message before them."""
    found: list[entry_pb2.Entry] = []
    notes = await _newest_note_of_others(run_id, covered_seq + 1, entries_before)
    note_seq = notes[0].seq if notes else 0
    speakers = entry_pb2.EntryFilter(roles=_SPEAKERS)
    async with aclosing(entries_before(covered_seq + 1, speakers, 0)) as entries:
        async for entry in entries:
            if entry.seq < note_seq:
                break
            found.append(entry)
            if entry.body.message.role != message_pb2.ROLE_ASSISTANT or entry.writer.run_id != run_id:
                return found[::-1]
    return [*notes, *reversed(found)]


async def _newest_note_of_others(
    run_id: str, before_seq: int, entries_before: EntriesBefore
) -> list[entry_pb2.Entry]:
    """Return the newest note of another writer, or nothing.

    A note of the run itself does not end its turn.
    """
    notes = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_NOTE])
    async with aclosing(entries_before(before_seq, notes, 1)) as entries:
        async for entry in entries:
            if not is_own(entry, run_id):
                return [entry]
    return []
