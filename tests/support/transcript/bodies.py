"""Bodies of entries, as harnesses and runners append them."""

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb


def text_block(text: str) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(text=content_pb.Text(text=text))


def call_block(call_id: str, block_json: str, name: str = "read") -> content_pb.ContentBlock:
    return content_pb.ContentBlock(
        tool_call=content_pb.ToolCall(tool_call_id=call_id, name=name, block_json=block_json)
    )


def user(text: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_USER, content=[text_block(text)])
    )


def assistant(text: str, *calls: str) -> entry_pb.EntryBody:
    blocks = [text_block(text), *(call_block(call_id, "{}") for call_id in calls)]
    return entry_pb.EntryBody(message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=blocks))


def result(call_id: str, text: str) -> entry_pb.EntryBody:
    message = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT, tool_call_id=call_id, tool_name="read", content=[text_block(text)]
    )
    return entry_pb.EntryBody(message=message)


def bash(command: str, output: str = "") -> entry_pb.EntryBody:
    message = content_pb.Message(
        role=content_pb.ROLE_BASH_EXECUTION,
        bash_execution=content_pb.BashExecution(command=command, exit_code=0),
        content=[text_block(output)],
    )
    return entry_pb.EntryBody(message=message)


def extension(text: str) -> entry_pb.EntryBody:
    message = content_pb.Message(role=content_pb.ROLE_CUSTOM, custom_type="todo", content=[text_block(text)])
    return entry_pb.EntryBody(message=message)


def mirror(text: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(mirror=entry_pb.Mirror(message=assistant(text).message, destination="chat:1"))


def note(text: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(system_note=entry_pb.SystemNote(text=text, topic="attachments"))


def superseded(entry_id: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(label=entry_pb.Label(entry_id=entry_id, kind=entry_pb.LABEL_KIND_SUPERSEDED))


def text_of(entry: entry_pb.Entry) -> str:
    return entry.body.system_note.text or entry.body.message.content[0].text.text
