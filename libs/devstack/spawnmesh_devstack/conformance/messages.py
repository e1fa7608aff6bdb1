"""Convert messages of session files to the contract, and back to a form for comparison."""

import json
from collections.abc import Sequence
from typing import Any

from spawnmesh.content.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_BASH_EXECUTION,
    ROLE_CUSTOM,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    BashExecution,
    ContentBlock,
    Message,
    Text,
)

from spawnmesh_devstack.conformance.cases import BadCase, list_of, object_of, text_of
from spawnmesh_devstack.conformance.tool_calls import tool_call, wire_text

_ROLE_NAMES = {
    ROLE_USER: "user",
    ROLE_ASSISTANT: "assistant",
    ROLE_TOOL_RESULT: "toolResult",
    ROLE_BASH_EXECUTION: "bashExecution",
    ROLE_CUSTOM: "custom",
}
_ROLES = {name.casefold(): role for role, name in _ROLE_NAMES.items()}
_CALLS = frozenset({"toolcall", "tooluse", "functioncall"})
_ANSWERED = ("toolCallId", "toolUseId", "tool_call_id", "tool_use_id", "callId", "call_id")
_BROKEN_OFF = frozenset({"error", "aborted"})


def messages_of(value: Any, what: str) -> list[Message]:
    """Return the messages with the fields that the contract has. Raises BadCase.

    A call that its provider broke off was never made, so it becomes text unless a result answers
    it. The same holds for blocks of an unknown kind.
    """
    sources = [object_of(item, f"{what}[{place}]") for place, item in enumerate(list_of(value, what))]
    return [_message(sources, place, f"{what}[{place}]") for place in range(len(sources))]


def comparable(message: Message) -> dict[str, Any]:
    """Return the parts of a message that must agree. The name of a tool counts only if there is
    one.
    """
    comparison: dict[str, Any] = {
        "role": _ROLE_NAMES[message.role],
        "content": [_comparable_block(block) for block in message.content],
    }
    if message.role == ROLE_TOOL_RESULT:
        comparison |= {"toolCallId": message.tool_call_id, "isError": message.is_error}
        if message.tool_name.strip():
            comparison["toolName"] = message.tool_name.strip()
    if message.role == ROLE_BASH_EXECUTION:
        comparison["command"] = message.bash_execution.command
    if message.role == ROLE_CUSTOM:
        comparison["customType"] = message.custom_type
    return comparison


def is_made_up(source: Any) -> bool:
    """Return whether a message of a case replaces a missing tool result, judged by its details or
    its wording.
    """
    if not isinstance(source, dict) or not source.get("isError"):
        return False
    details = source.get("details")
    if isinstance(details, dict) and any(
        "synthetic" in key.casefold() and details[key] is True for key in details
    ):
        return True
    said = json.dumps(source.get("content")).casefold()
    return "missing tool result" in said and "synthetic" in said


def _message(sources: Sequence[Any], place: int, what: str) -> Message:
    source = sources[place]
    role = _ROLES.get(_plain(source.get("role")))
    if role is None:
        raise BadCase(f"{what} has a role that the contract has not: {source.get('role')!a}")
    message = Message(role=role)
    if role == ROLE_TOOL_RESULT:
        message.tool_call_id = wire_text(_answered(source, what))
        message.tool_name = wire_text(
            text_of(source.get("toolName", source.get("tool_name")), f"{what}.toolName")
        )
        message.is_error = source.get("isError") is True
    if role == ROLE_BASH_EXECUTION:
        command = wire_text(text_of(source.get("command"), f"{what}.command"))
        message.bash_execution.CopyFrom(BashExecution(command=command))
    if role == ROLE_CUSTOM:
        message.custom_type = wire_text(text_of(source.get("customType"), f"{what}.customType"))
    content = source.get("output" if role == ROLE_BASH_EXECUTION else "content")
    blocks = (
        []
        if content is None
        else [{"type": "text", "text": content}]
        if isinstance(content, str)
        else content
    )
    for number, block in enumerate(list_of(blocks, f"{what}.content")):
        call_id = _call_id(object_of(block, f"{what}.content[{number}]"))
        if role == ROLE_ASSISTANT and call_id and _was_asked(sources, place, call_id):
            message.content.append(ContentBlock(tool_call=tool_call(block, call_id)))
        else:
            message.content.append(ContentBlock(text=Text(text=_text(block))))
    return message


def _text(block: Any) -> str:
    is_text = block.get("type") == "text" and isinstance(block.get("text"), str)
    return wire_text(block["text"]) if is_text else json.dumps(block)


def _was_asked(sources: Sequence[Any], place: int, call_id: str) -> bool:
    if _plain(sources[place].get("stopReason")) not in _BROKEN_OFF:
        return True
    for later in sources[place + 1 :]:
        if (
            _plain(later.get("role")) == "toolresult"
            and _answered(later, "a message").strip() == call_id.strip()
        ):
            return True
        if any(_call_id(block).strip() == call_id.strip() for block in _blocks(later)):
            return False
    return False


def _blocks(source: Any) -> list[Any]:
    content = source.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _call_id(block: Any) -> str:
    """Return the id of a call block; empty for any other block, and for a call that no result can
    answer.
    """
    call_id = block.get("id")
    is_call = _plain(block.get("type")) in _CALLS and isinstance(call_id, str) and call_id.strip()
    return call_id if is_call else ""


def _answered(source: Any, what: str) -> str:
    named = next((source[name] for name in _ANSWERED if source.get(name) is not None), None)
    return text_of(named, f"{what}.toolCallId")


def _plain(value: Any) -> str:
    return value.replace("_", "").casefold() if isinstance(value, str) else ""


def _comparable_block(block: ContentBlock) -> dict[str, Any]:
    if block.HasField("tool_call"):
        return {"call": json.loads(block.tool_call.block_json), "id": block.tool_call.tool_call_id}
    return {"text": block.text.text}
