"""The turns that the run took on earlier runners, read from its transcript."""

from contextlib import aclosing

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_messages import calls_of, text_of
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.transcript_pages import entries_before
from spawnmesh_runner.tools.calling.call import BLOCKED

_TURNS = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MESSAGE, entry_pb2.ENTRY_KIND_COMPACTION])
_KEPT_BACK = (f"{BLOCKED}: ", f"{Reason.PLUGIN_FAILED.value}: ")


async def replay_earlier_turns(assignment: Assignment) -> int:
    """Count the turns that this run took on earlier runners.

    Add their tokens and cost to the usage, their calls (unless plugins blocked them) to the called
    tools, and the files that they wrote to the lost files. Reads backwards in pages, up to the
    entries of an earlier run of the session. Entries of other writers in between are skipped.
    """
    turn_count = 0
    usages: list[message_pb2.TokenUsage] = []
    kept_back: set[str] = set()
    async with aclosing(entries_before(assignment, 0, _TURNS)) as entries:
        async for entry in entries:
            if 0 < entry.writer.epoch < assignment.first_epoch:
                break
            if entry.writer.run_id != assignment.run_id:
                continue
            message = entry.body.message
            assignment.lost_files.add_message(message)
            usages.append(entry.body.compaction.sources.usage)
            if message.role == message_pb2.ROLE_ASSISTANT:
                turn_count += 1
                usages.append(message.usage)
                made = (call for call in calls_of(message) if call.tool_call_id not in kept_back)
                assignment.called_tools.update(call.name for call in made)
                kept_back.clear()
            elif _was_blocked(message):
                kept_back.add(message.tool_call_id)
    for usage in reversed(usages):  # They were read newest first.
        assignment.add_usage(usage)
    return turn_count


def _was_blocked(result: message_pb2.Message) -> bool:
    """Return True for the result of a call that a plugin blocked.

    A tool's own error has another reason in front.
    """
    return result.is_error and text_of(result).startswith(_KEPT_BACK)
