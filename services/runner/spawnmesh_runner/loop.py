"""The agent loop: read, ask the model, run its tools, until an answer is accepted."""

from collections.abc import Sequence

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.side_by_side import side_by_side

from spawnmesh_runner.assignment import Assignment, render_usage
from spawnmesh_runner.compaction import compact
from spawnmesh_runner.context import (
    OUTPUT_LIMIT_NOTE,
    Draft,
    OpenCall,
    calls_of,
    cut_off_count,
    has_newest_draft,
    open_calls,
    pending_draft,
    text_of,
)
from spawnmesh_runner.domain import MAX_CUT_OFF_COUNT, OutputLimitReached, TurnLimitExceeded, Turns
from spawnmesh_runner.generate import call_seconds, generate, heeded, is_cut_off
from spawnmesh_runner.hooks import see_hooks, tell_answer
from spawnmesh_runner.inbox import drain_inbox
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tool_calls import finish_calls, run_calls
from spawnmesh_runner.transcript import append_answer, assemble, count_earlier_turns, open_window, window_held

# Hooks are asked meanwhile, and one may take ten minutes. A session service that died meanwhile is noticed by the lease.
_FINALIZE_SECONDS = 660.0

_COMPACTION_SHARE = 0.5  # Of the time for a model call, or of what is left of the run: it is there to go on.


async def work_to_answer(assignment: Assignment) -> None:
    """Takes turns until the session accepts an answer. Goes on from what the transcript holds of earlier runners.

    Raises TurnLimitExceeded, OutputLimitReached, or the MeshError of a peer that refused or stayed away.
    """
    turns = Turns(assignment.max_turn_count)
    has_predecessors = assignment.epoch > assignment.first_epoch
    if has_predecessors and await _finish_turn(assignment, turns):
        return
    while turns.may_go_on:
        turns.taken_count += 1
        if await _take_turn(assignment, turns):
            return
    raise TurnLimitExceeded(assignment.max_turn_count)


async def _finish_turn(assignment: Assignment, turns: Turns) -> bool:
    """Counts the turns of earlier runners, and finishes the newest one; True once the run has its answer."""
    turns.taken_count = await count_earlier_turns(assignment)
    if not turns.taken_count:
        return False
    await see_hooks(assignment)
    read = await assemble(assignment)
    await finish_calls(assignment, open_calls(read.entries, assignment.run_id))
    if turns.taken_count > turns.max_count or has_newest_draft(read.entries, assignment.run_id):
        turns.count_late_messages()  # It has some turns of theirs already, or what stands behind its last draft is still to be read.
    draft = pending_draft(read.entries, assignment.run_id)
    return draft is not None and await _is_accepted(assignment, draft, turns)


async def _take_turn(assignment: Assignment, turns: Turns) -> bool:
    """One turn; True once the run has its answer. An answer to what is no longer the transcript is discarded, and the turn with it."""
    await side_by_side([see_hooks(assignment), drain_inbox(assignment)])
    fence = await open_window(assignment)
    read = await assemble(assignment)
    draft = pending_draft(read.entries, assignment.run_id)
    if (
        draft is None
        and read.compaction_due
        and await compact(assignment, timeout_seconds=call_seconds(assignment) * _COMPACTION_SHARE)
    ):
        fence = await open_window(assignment)  # The summary would be a takeover inside of the window before.
        read = await assemble(assignment)
    if draft is None:
        completion = await generate(assignment, read.entries)
        assignment.spend(completion.message.usage)
        await tell_answer(assignment, completion)
        if not await window_held(assignment, fence):
            return False
        if is_cut_off(completion):
            await _note_cut_off(assignment, read.entries, completion.message, turns)
            return False
        entry_id, answer = await append_answer(assignment, turns.taken_count, heeded(completion))
        calls = [OpenCall(entry_id, index, call) for index, call in enumerate(calls_of(answer))]
        if calls:
            await run_calls(assignment, calls)
            return False
        draft = Draft(entry_id, text_of(answer))
    return await _is_accepted(assignment, draft, turns)


async def _note_cut_off(
    assignment: Assignment, entries: Sequence[entry_pb2.Entry], answer: message_pb2.Message, turns: Turns
) -> None:
    """Has the next turn tell the model that its answer was cut off. Raises OutputLimitReached where that was in vain, or no turn is left."""
    count = cut_off_count(entries, assignment.run_id) + 1
    if count >= MAX_CUT_OFF_COUNT or not turns.may_go_on:
        raise OutputLimitReached(answer.model, count)
    await append_answer(assignment, turns.taken_count, answer, OUTPUT_LIMIT_NOTE)


async def _is_accepted(assignment: Assignment, draft: Draft, turns: Turns) -> bool:
    """Offers the draft. After a revision its instruction, after messages they, are what the next turn reads."""
    mesh = assignment.mesh
    request = pb.FinalizeRunRequest(
        epoch=assignment.epoch,
        draft_entry_id=draft.entry_id,
        draft_text=draft.text,
        usage=render_usage(assignment.spending),
        has_final_effects=assignment.has_final_effects,
        is_last_turn=turns.are_over,
    )
    answer = await persistently(mesh.session, mesh.runs.FinalizeRun, request, timeout_seconds=_FINALIZE_SECONDS)
    if answer.HasField("messages_pending"):
        turns.count_late_messages()
    return answer.HasField("accepted")
