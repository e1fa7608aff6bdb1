"""Files that are handed over in a call: what plugins may see of such a call and cannot change, and what is kept of one with no file in it."""

from collections.abc import Callable, Container, Iterator
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_runner.tools.call import call_arguments, call_with
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN, SessionsSpawn, SpawnAttachment, is_marker
from spawnmesh_runner.tools.tool import ToolRefused

_REDACTED = {"$redacted": "attachment"}
_LEFT_OUT = "[left out]"  # Arguments that are no JSON: no tool is called with them, also none that needs no arguments.
_FILES = "attachments"
_FACTS_OF_CALL = set(SessionsSpawn.model_fields) - {_FILES}
_FACTS_OF_FILE = set(SpawnAttachment.model_fields) - {"content"}


def without_files(tool_name: str, arguments: object) -> object:
    """The arguments with a marker for what each file contains.

    Of a call that spawns, for whatever the tool does not know as well: it may be a file in a place where the tool does not expect one.
    """
    if tool_name == SESSIONS_SPAWN.name:
        return _facts_of_call(arguments, _REDACTED)
    if not isinstance(arguments, dict) or not isinstance(arguments.get(_FILES), list):
        return arguments
    files = [
        {**one, "content": _REDACTED} if isinstance(one, dict) and "content" in one else one
        for one in arguments[_FILES]
    ]
    return {**arguments, _FILES: files}


def with_files(rewritten: dict[str, Any], arguments: object, shown: object) -> dict[str, Any]:
    """The arguments that a plugin gave; what it was not shown stays as it was, and files in any case."""
    if not isinstance(arguments, dict) or not isinstance(shown, dict):
        return rewritten
    kept = {name: value for name, value in arguments.items() if shown.get(name) != value}
    if isinstance(arguments.get(_FILES), list):
        kept[_FILES] = arguments[_FILES]
    return {**rewritten, **kept}


def without_markers(answer: message_pb2.Message) -> Iterator[message_pb2.Message]:
    """An answer that the transcript refuses for a marker in it, with ever less in its calls until there can be none left.

    Of a call that spawns null stands for each file, which the tool refuses; of another the arguments are left out, which every tool refuses.
    First of those calls that seem to have one, since the others are to be made as they are.
    """
    yield _with_calls(answer, lambda call: _without_contents(call) if "redacted" in call.block_json else call)
    yield _with_calls(answer, _without_contents)
    yield _with_calls(answer, _without_arguments)


def _with_calls(
    answer: message_pb2.Message, kept: Callable[[message_pb2.ToolCall], message_pb2.ToolCall]
) -> message_pb2.Message:
    less = message_pb2.Message()
    less.CopyFrom(answer)
    for block in less.content:
        if block.HasField("tool_call"):
            block.tool_call.CopyFrom(kept(block.tool_call))
    return less


def _without_contents(call: message_pb2.ToolCall) -> message_pb2.ToolCall:
    if call.name.strip() != SESSIONS_SPAWN.name:
        return call
    try:
        arguments = call_arguments(call)
    except ToolRefused:
        arguments = None
    kept = _facts_of_call(arguments, None)
    return call if kept == arguments else call_with(call, kept)


def _without_arguments(call: message_pb2.ToolCall) -> message_pb2.ToolCall:
    may_spawn = "spawn" in f"{call.name} {call.block_json}".casefold() or "\\u" in call.block_json
    return call_with(call, _LEFT_OUT) if may_spawn else call


def _facts_of_call(arguments: object, instead: object) -> object:
    """What is known of a call that spawns, and `instead` for all else."""
    if not isinstance(arguments, dict):
        return instead
    facts = _facts(arguments, _FACTS_OF_CALL, instead)
    if isinstance(files := arguments.get(_FILES), list):
        facts[_FILES] = [_facts_of_file(one, instead) for one in files]
    return facts


def _facts_of_file(file: object, instead: object) -> object:
    return _facts(file, _FACTS_OF_FILE, instead) if isinstance(file, dict) and not is_marker(file) else instead


def _facts(given: dict[str, Any], facts: Container[str], instead: object) -> dict[str, Any]:
    return {name: value if name in facts and isinstance(value, str) else instead for name, value in given.items()}
