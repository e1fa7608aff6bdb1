"""The agent loop: read the context, call the model, run its tools, until an answer is accepted."""

from collections.abc import Sequence

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1.transcript_service_pb2 import Fence
from spawnmesh_client.turn_messages import calls_of, text_of
from spawnmesh_client.unfinished_turn import (
    INTERRUPTED_NOTE,
    OUTPUT_LIMIT_NOTE,
    OpenCall,
    PendingAnswer,
    cut_off_count,
    has_pending_answer,
    open_calls,
    pending_answer,
)
from spawnmesh_core.task_group import run_concurrently

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import TurnInterrupted
from spawnmesh_runner.domain.turns import MAX_CUT_OFF_COUNT, OutputLimitReached, TurnBudget, TurnLimitExceeded
from spawnmesh_runner.loop.assignment import Assignment, render_usage
from spawnmesh_runner.loop.budget import within_budget
from spawnmesh_runner.loop.compaction import compact_transcript
from spawnmesh_runner.loop.context_assembly import assemble
from spawnmesh_runner.loop.earlier_turns import replay_earlier_turns
from spawnmesh_runner.loop.generate import (
    generate,
    is_cut_off,
    model_call_seconds,
    prepare_prompt,
    without_refused_calls,
)
from spawnmesh_runner.loop.hooks import publish_llm_output, refresh_active_hooks
from spawnmesh_runner.loop.inbox import drain_inbox
from spawnmesh_runner.loop.interruption import RunInterrupted
from spawnmesh_runner.loop.prompt_window import close_window, holds_window, open_window
from spawnmesh_runner.loop.tool_calls import finish_calls, run_calls
from spawnmesh_runner.loop.writer_claim import acquire_writer

# FinalizeRun dispatches hooks, and one hook may take ten minutes. If the session service dies
# meanwhile, the lease notices it.
_FINALIZE_SECONDS = 660.0

# The first turn believes the claim for so long: the second turn notices a plugin or a message that
# comes meanwhile.
_FRESH_SECONDS = 1.0

# A share of the time for a model call, or of what is left of the run: the run still needs time to
# continue after the compaction.
_COMPACTION_SHARE = 0.5


async def run_agent_loop(assignment: Assignment) -> None:
    """Take turns until the session accepts an answer.

    Continue from what earlier runners left in the transcript.

    Raises TurnLimitExceeded, OutputLimitReached, RunInterrupted, RunParked if the run waits for a
    person or a budget, or the MeshError of a peer that refused or stayed unavailable.
    """
    turns = TurnBudget(assignment.max_turn_count)
    if assignment.has_predecessors and await _finish_turn(assignment, turns):
        return
    while turns.has_turn_left:
        turns.taken_count += 1
        try:
            if await _take_turn(assignment, turns):
                return
        except TurnInterrupted:
            turns.record_late_messages()
    assignment.interruption.raise_if_run_must_end()
    raise TurnLimitExceeded(assignment.max_turn_count)


async def _finish_turn(assignment: Assignment, turns: TurnBudget) -> bool:
    """Count the turns of earlier runners and finish the newest one.

    Return True once the run has its answer.
    """
    turns.taken_count = await replay_earlier_turns(assignment)
    if not turns.taken_count:
        return False
    await refresh_active_hooks(assignment)
    read = await assemble(assignment)
    await finish_calls(assignment, open_calls(read.entries, assignment.run_id))
    if turns.taken_count > turns.max_count or has_pending_answer(read.entries, assignment.run_id):
        # Earlier runners already got late turns, or messages behind the pending answer are still
        # unread.
        turns.record_late_messages()
    pending = pending_answer(read.entries, assignment.run_id)
    return pending is not None and await _is_accepted(assignment, pending, turns)


async def _read_news(assignment: Assignment, turns: TurnBudget) -> None:
    """Read the active hooks and the messages, unless a fresh claim says that there are none."""
    claimed, is_first = assignment.claimed, turns.taken_count == 1
    is_fresh = is_first and assignment.age_seconds < _FRESH_SECONDS
    has_messages = not is_fresh or claimed.pending_message_count > 0
    if is_first and has_messages:
        await acquire_writer(assignment)  # The messages are written before the first window.
    await run_concurrently(
        [
            *([] if is_fresh and not claimed.enabled_hooks else [refresh_active_hooks(assignment)]),
            *([drain_inbox(assignment)] if has_messages else []),
        ]
    )


async def _take_turn(assignment: Assignment, turns: TurnBudget) -> bool:
    """Take one turn. Return True once the run has its answer.

    If the transcript changed while the model answered, discard the answer: it replies to a
    transcript that no longer exists. Raises TurnInterrupted at the next safe point after an
    interrupt, with all that was said and done in the transcript; RunInterrupted if no turn may
    begin.
    """
    assignment.interruption.raise_if_run_must_end()
    await _read_news(assignment, turns)
    assignment.interruption.raise_if_run_must_end()
    fence, read = await open_window(assignment)
    pending = pending_answer(read.entries, assignment.run_id)
    if (
        pending is None
        and read.compaction_due
        and await within_budget(assignment, lambda: _compact(assignment))
    ):
        # In the window before, the summary would count as a takeover.
        fence, read = await open_window(assignment)
    if pending is None:
        completion = await _answer(assignment, read.entries, fence, turns)
        assignment.add_usage(completion.message.usage)
        await publish_llm_output(assignment, completion)
        if is_cut_off(completion):
            await _note_cut_off(assignment, read.entries, completion.message, fence, turns)
            return False
        appended = await close_window(assignment, fence, turns.taken_count, without_refused_calls(completion))
        if appended is None:
            return False
        entry_id, answer = appended
        calls = [OpenCall(entry_id, index, call) for index, call in enumerate(calls_of(answer))]
        if calls:
            await run_calls(assignment, calls)
            return False
        pending = PendingAnswer(entry_id, text_of(answer))
    return await _is_accepted(assignment, pending, turns)


async def _compact(assignment: Assignment) -> bool:
    seconds = model_call_seconds(assignment) * _COMPACTION_SHARE
    return await compact_transcript(assignment, timeout_seconds=seconds)


async def _answer(
    assignment: Assignment, entries: Sequence[entry_pb2.Entry], fence: Fence, turns: TurnBudget
) -> generation_pb2.Completion:
    """Return the model's answer. Of one that is interrupted, keep what was said.

    Raises TurnInterrupted, RunParked, and what `prepare_prompt` and `generate` raise.
    """
    cut_turn = assignment.interruption.cut_turn
    with assignment.drafts.writing(fence.seq) as spoken:
        try:
            prompt = await cut_turn(prepare_prompt(assignment, entries))
            return await within_budget(assignment, lambda: generate(assignment, prompt, spoken))
        except TurnInterrupted:
            said = spoken.message
            if said is not None:
                await close_window(assignment, fence, turns.taken_count, said, [INTERRUPTED_NOTE])
            raise


async def _note_cut_off(
    assignment: Assignment,
    entries: Sequence[entry_pb2.Entry],
    answer: message_pb2.Message,
    fence: Fence,
    turns: TurnBudget,
) -> None:
    """Append a note, so that the next turn tells the model that its answer was cut off.

    Raises OutputLimitReached after MAX_CUT_OFF_COUNT such answers, or when no turn is left.
    """
    count = cut_off_count(entries, assignment.run_id) + 1
    if count >= MAX_CUT_OFF_COUNT or not turns.has_turn_left:
        if await holds_window(assignment, fence):
            raise OutputLimitReached(answer.model, count)
        return
    await close_window(assignment, fence, turns.taken_count, answer, [OUTPUT_LIMIT_NOTE])


async def _is_accepted(assignment: Assignment, pending: PendingAnswer, turns: TurnBudget) -> bool:
    """Offer the answer to the session. Return True if it is accepted.

    Otherwise the next turn reads the instruction of a revision, or the pending messages. Raises
    RunInterrupted if the run must end first; the session service knows which of the two came first.
    """
    peers = assignment.peers
    request = pb.FinalizeRunRequest(
        epoch=assignment.epoch,
        draft_entry_id=pending.entry_id,
        draft_text=pending.text,
        usage=render_usage(assignment.usage_total),
        has_final_effects=assignment.has_final_effects,
        is_last_turn=turns.is_exhausted,
    )
    await assignment.run_events.reported()
    answer = await assignment.interruption.cut_run(
        call_with_retry(peers.session, peers.runs.FinalizeRun, request, timeout_seconds=_FINALIZE_SECONDS)
    )
    if answer.HasField("interrupted"):
        raise RunInterrupted
    if answer.HasField("messages_pending"):
        turns.record_late_messages()
    return answer.HasField("accepted")
