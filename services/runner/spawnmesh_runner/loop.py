"""The agent loop: read, ask the model, run its tools, until an answer is accepted."""

from spawnmesh.session.v1 import run_service_pb2 as pb

from spawnmesh_runner.assignment import Assignment, render_usage
from spawnmesh_runner.context import Draft, OpenCall, calls_of, open_calls, pending_draft, text_of
from spawnmesh_runner.domain import TurnLimitExceeded, answer_key
from spawnmesh_runner.executed import turn_so_far
from spawnmesh_runner.generate import generate
from spawnmesh_runner.hooks import see_hooks, tell_answer
from spawnmesh_runner.inbox import drain_inbox
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tool_calls import finish_calls, run_calls
from spawnmesh_runner.transcript import append_message, assemble, count_earlier_turns, open_window, window_held

# Hooks are asked meanwhile, and one may take ten minutes. A session service that died meanwhile is noticed by the lease.
_FINALIZE_SECONDS = 660.0


async def work_to_answer(assignment: Assignment) -> None:
    """Takes turns until the session accepts an answer. Goes on from what the transcript holds of earlier runners.

    Raises TurnLimitExceeded, or the MeshError of a peer that refused or stayed away.
    """
    earlier_turn_count = 0
    if assignment.epoch > 1:  # at the first epoch nobody can have been here before
        earlier_turn_count = await count_earlier_turns(assignment)
        if earlier_turn_count:
            await see_hooks(assignment)
            await finish_calls(assignment, open_calls(await assemble(assignment), assignment.run_id))
    for turn in range(earlier_turn_count + 1, assignment.max_turn_count + 1):
        if await _take_turn(assignment, turn):
            return
    raise TurnLimitExceeded(assignment.max_turn_count)


async def _take_turn(assignment: Assignment, turn: int) -> bool:
    """One turn; True once the run has its answer. An answer to what is no longer the transcript is discarded, and the turn with it."""
    await see_hooks(assignment)
    await drain_inbox(assignment)
    fence = await open_window(assignment)
    entries = await assemble(assignment)
    draft = pending_draft(entries, assignment.run_id)
    if draft is None:
        completion = await generate(assignment, entries)
        answer = completion.message
        assignment.spend(answer.usage)
        await tell_answer(assignment, completion)
        if not await window_held(assignment, fence):
            return False
        entry_id = await append_message(assignment, answer_key(assignment.run_id, assignment.epoch, turn), answer)
        calls = [OpenCall(entry_id, index, call) for index, call in enumerate(calls_of(answer))]
        if calls:
            await run_calls(assignment, calls)
            return False
        draft = Draft(entry_id, text_of(answer))
    executed = turn_so_far(entries, assignment.run_id, assignment.tools).tool_names
    has_final_effects = any(not assignment.tools[name].idempotent for name in executed)
    return await _is_accepted(assignment, draft, has_final_effects=has_final_effects)


async def _is_accepted(assignment: Assignment, draft: Draft, *, has_final_effects: bool) -> bool:
    """Offers the draft. After a revision its instruction, after messages they, are what the next turn reads."""
    mesh = assignment.mesh
    request = pb.FinalizeRunRequest(
        epoch=assignment.epoch,
        draft_entry_id=draft.entry_id,
        draft_text=draft.text,
        usage=render_usage(assignment.spending),
        has_final_effects=has_final_effects,
    )
    answer = await persistently(mesh.session, mesh.runs.FinalizeRun, request, timeout_seconds=_FINALIZE_SECONDS)
    return answer.HasField("accepted")
