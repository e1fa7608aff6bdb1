"""The unfinished turn at the end of a context, from which a runner continues a run: its pending
answer, its open calls, and its answers that were cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_client.turn_messages import calls_of, text_of

OUTPUT_LIMIT_NOTE = entry_pb2.SystemNote(
    topic="output_limit",
    text=(
        "Your answer reached the output limit before it said anything, or before its tool call was complete."
        " Nothing of it was done. The next answer has the same limit: think less before you answer, and do"
        " large work in smaller steps, for example several files in place of one."
    ),
)
"""The note behind an answer that was cut off.

Such an answer calls no tool, and it is no pending answer either.
"""

INTERRUPTED_NOTE = entry_pb2.SystemNote(
    topic="interrupted",
    text=(
        "You were interrupted here. Your answer above is kept as far as it had come, and nothing that"
        " would have followed was said or done."
    ),
)
"""The note behind an answer that an interrupt cut off. It is no pending answer."""


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer in the transcript that is neither accepted nor rejected.

    FinalizeRun offers it as the draft.
    """

    entry_id: str
    text: str


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call in the transcript without a result.

    `index` counts the calls of its message from 0.
    """

    answer_entry_id: str
    index: int
    call: message_pb2.ToolCall


def pending_answer(entries: Sequence[entry_pb2.Entry], run_id: str) -> PendingAnswer | None:
    """Return the run's own answer if nothing is behind it in the transcript.

    Such an answer was appended but not offered, or has to be offered again.
    """
    newest = entries[-1] if entries else None
    if newest is None or not _is_answer_of(newest, run_id) or calls_of(newest.body.message):
        return None
    return PendingAnswer(newest.entry_id, text_of(newest.body.message))


def has_pending_answer(entries: Sequence[entry_pb2.Entry], run_id: str) -> bool:
    """Return True if the run's newest answer is neither accepted nor rejected.

    Other writers' entries may be behind it.
    """
    newest = next((entry for entry in reversed(entries) if is_own(entry, run_id)), None)
    return newest is not None and _is_answer_of(newest, run_id) and not calls_of(newest.body.message)


def cut_off_count(entries: Sequence[entry_pb2.Entry], run_id: str) -> int:
    """Count the run's newest answers in a row that were cut off before they said anything."""
    own = [entry for entry in entries if is_own(entry, run_id)]
    count = 0
    while own and _is_cut_off_note(own.pop()):
        count += 1
        del own[-1:]  # Drop the answer in front of the note.
    return count


def is_own(entry: entry_pb2.Entry, run_id: str) -> bool:
    """Return True for an answer of the run, or for its note behind an answer.

    Its turn continues after both.
    """
    is_note = entry.body.system_note.topic in (OUTPUT_LIMIT_NOTE.topic, INTERRUPTED_NOTE.topic)
    return _is_answer_of(entry, run_id) or (is_note and entry.writer.run_id == run_id)


def open_calls(entries: Sequence[entry_pb2.Entry], run_id: str) -> list[OpenCall]:
    """Return the calls of the run's newest answer that have no stored result.

    A result that was made up while assembling has no entry id. Return nothing if anything but
    results is behind that answer: the conversation has continued without them.
    """
    answered: set[str] = set()
    for entry in reversed(entries):
        message = entry.body.message
        if message.role == message_pb2.ROLE_TOOL_RESULT:
            if entry.entry_id:
                answered.add(message.tool_call_id)
        elif _is_answer_of(entry, run_id):
            calls = enumerate(calls_of(message))
            return [
                OpenCall(entry.entry_id, index, call)
                for index, call in calls
                if call.tool_call_id not in answered
            ]
        else:
            break
    return []


def _is_answer_of(entry: entry_pb2.Entry, run_id: str) -> bool:
    return entry.body.message.role == message_pb2.ROLE_ASSISTANT and entry.writer.run_id == run_id


def _is_cut_off_note(entry: entry_pb2.Entry) -> bool:
    return entry.body.system_note.topic == OUTPUT_LIMIT_NOTE.topic
