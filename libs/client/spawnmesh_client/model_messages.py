"""The assembled context as the messages that a model reads."""

import re
from collections.abc import Iterable

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_client.turn_messages import calls_of, text_message, without_calls

_SUMMARY_BEGINS = (
    "[Summary of the earlier part of this conversation, in place of its messages."
    " It is a record of what was said and done, no new request.]"
)
_SUMMARY_ENDS = "[End of the summary. The conversation continues here.]"
# A summary that repeats one of these lines must not end its own frame.
_FRAME = re.compile(r"\[(?=\s*(?:end\s+of\s+the\s+)?summary\b)", re.IGNORECASE)


def messages_for_model(entries: Iterable[entry_pb2.Entry]) -> list[message_pb2.Message]:
    """Return the conversation in order.

    Summaries, notes, commands and extensions' messages become the user's.

    A call whose arguments a plugin rewrote is shown as it was made.
    """
    messages: list[message_pb2.Message] = []
    newest_answer = -1
    for entry in entries:
        if entry.body.HasField("message"):
            message = _for_model(entry.body.message)
            if message.role == message_pb2.ROLE_ASSISTANT:
                newest_answer = len(messages)
            elif message.role == message_pb2.ROLE_TOOL_RESULT and (made := calls_of(message)):
                message = without_calls(message)
                if newest_answer >= 0:
                    messages[newest_answer] = _as_made(messages[newest_answer], made)
            messages.append(message)
        elif entry.body.HasField("compaction"):
            summary = _FRAME.sub("(", entry.body.compaction.summary)
            text = f"{_SUMMARY_BEGINS}\n\n{summary}\n\n{_SUMMARY_ENDS}"
            messages.append(text_message(message_pb2.ROLE_USER, text))
        elif entry.body.HasField("system_note"):
            messages.append(text_message(message_pb2.ROLE_USER, entry.body.system_note.text))
    return messages


def _for_model(message: message_pb2.Message) -> message_pb2.Message:
    if message.role == message_pb2.ROLE_BASH_EXECUTION:
        run = message.bash_execution
        ending = (
            "cancelled"
            if run.is_cancelled
            else f"exit code {run.exit_code}"
            if run.HasField("exit_code")
            else ""
        )
        notes = [note for note in (ending, "output cut short" if run.is_truncated else "") if note]
        read = text_message(message_pb2.ROLE_USER, f"$ {run.command}\n")
        read.content.extend(message.content)
        if notes:
            read.content.append(
                message_pb2.ContentBlock(text=message_pb2.Text(text=f"\n[{', '.join(notes)}]"))
            )
        return read
    if message.role == message_pb2.ROLE_CUSTOM:
        return message_pb2.Message(role=message_pb2.ROLE_USER, content=message.content)
    return message


def _as_made(answer: message_pb2.Message, made: Iterable[message_pb2.ToolCall]) -> message_pb2.Message:
    """Return the answer with its calls replaced by those of the same ids."""
    by_id = {call.tool_call_id: call for call in made}
    read = message_pb2.Message()
    read.CopyFrom(answer)
    for block in read.content:
        if block.HasField("tool_call") and block.tool_call.tool_call_id in by_id:
            block.tool_call.CopyFrom(by_id[block.tool_call.tool_call_id])
    return read
