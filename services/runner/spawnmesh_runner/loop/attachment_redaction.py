"""Redaction of files in tool calls: for plugins, and for answers that repeat a redaction marker."""

import json
from collections.abc import Container, Iterator
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh_client.turn_messages import map_calls
from spawnmesh_core.json_text import NotJson
from spawnmesh_core.spawn_calls import is_spawn_tool
from spawnmesh_core.spawn_redaction import redact_arguments

from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.call_arguments import call_arguments, replace_arguments
from spawnmesh_runner.tools.sessions_spawn import (
    SESSIONS_SPAWN,
    SessionsSpawn,
    SpawnAttachment,
    is_redaction_marker,
)

_REDACTED = {"$redacted": "attachment"}
# These arguments are not JSON, so no tool accepts them, not even a tool without arguments.
_OMITTED = "[left out]"
_FILES = "attachments"
_CALL_ARGUMENTS = set(SessionsSpawn.model_fields) - {_FILES}
_FILE_ARGUMENTS = set(SpawnAttachment.model_fields) - {"content"}


def redact_files(tool_name: str, arguments: object) -> object:
    """Return the arguments as the transcript keeps them: in a call that spawns, a marker replaces
    everything that is or may be a file's content.
    """
    if not is_spawn_tool(tool_name):
        return arguments
    try:
        return json.loads(redact_arguments(json.dumps(arguments)))
    except NotJson:  # The transcript has refused such a call.
        return _REDACTED


def restore_files(rewritten: dict[str, Any], arguments: object, shown: object) -> dict[str, Any]:
    """Return the arguments that a plugin gave, with every redacted value restored.

    Files are always restored.
    """
    if not isinstance(arguments, dict) or not isinstance(shown, dict):
        return rewritten
    kept = {name: value for name, value in arguments.items() if shown.get(name) != value}
    if isinstance(arguments.get(_FILES), list):
        kept[_FILES] = arguments[_FILES]
    return {**rewritten, **kept}


def variants_without_markers(answer: message_pb2.Message) -> Iterator[message_pb2.Message]:
    """Yield variants of an answer that the transcript refuses for a redaction marker.

    Each variant has less in its calls; the last one can hold no marker. In a call that spawns, null
    replaces each file, and the tool refuses it. In another call the arguments are dropped, and
    every tool refuses that. The first variant changes only the calls that seem to have a marker, so
    that the others are made as they are.
    """
    yield map_calls(answer, lambda call: _without_contents(call) if "redacted" in call.block_json else call)
    yield map_calls(answer, _without_contents)
    yield map_calls(answer, _without_arguments)


def _without_contents(call: message_pb2.ToolCall) -> message_pb2.ToolCall:
    if call.name.strip() != SESSIONS_SPAWN.name:
        return call
    try:
        arguments = call_arguments(call)
    except ToolRefused:
        arguments = None
    kept = _known_of_call(arguments, None)
    return call if kept == arguments else replace_arguments(call, kept)


def _without_arguments(call: message_pb2.ToolCall) -> message_pb2.ToolCall:
    may_spawn = "spawn" in f"{call.name} {call.block_json}".casefold() or "\\u" in call.block_json
    return replace_arguments(call, _OMITTED) if may_spawn else call


def _known_of_call(arguments: object, marker: object) -> object:
    """Return the known arguments of a call that spawns, with `marker` in place of the others."""
    if not isinstance(arguments, dict):
        return marker
    known = _known(arguments, _CALL_ARGUMENTS, marker)
    if isinstance(files := arguments.get(_FILES), list):
        known[_FILES] = [_known_of_file(one, marker) for one in files]
    return known


def _known_of_file(file: object, marker: object) -> object:
    return (
        _known(file, _FILE_ARGUMENTS, marker)
        if isinstance(file, dict) and not is_redaction_marker(file)
        else marker
    )


def _known(given: dict[str, Any], names: Container[str], marker: object) -> dict[str, Any]:
    return {
        name: value if name in names and isinstance(value, str) else marker for name, value in given.items()
    }
