"""Files that are handed over in a call: what plugins may see of such a call, and what they cannot change."""

from collections.abc import Container
from typing import Any

from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN, SessionsSpawn, SpawnAttachment

_REDACTED = {"$redacted": "attachment"}
_FILES = "attachments"
_FACTS_OF_CALL = set(SessionsSpawn.model_fields) - {_FILES}
_FACTS_OF_FILE = set(SpawnAttachment.model_fields) - {"content"}


def without_files(tool_name: str, arguments: object) -> object:
    """The arguments with a marker for what each file contains.

    Of a call that spawns, for whatever the tool does not know as well: it may be a file in a place where the tool does not expect one.
    """
    if tool_name == SESSIONS_SPAWN.name:
        if not isinstance(arguments, dict):
            return _REDACTED
        shown = _known(arguments, _FACTS_OF_CALL)
        return shown | {_FILES: _files(arguments[_FILES])} if _FILES in arguments else shown
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


def _files(given: object) -> object:
    if not isinstance(given, list):
        return _REDACTED
    return [_known(one, _FACTS_OF_FILE) if isinstance(one, dict) else _REDACTED for one in given]


def _known(given: dict[str, Any], facts: Container[str]) -> dict[str, Any]:
    return {name: value if name in facts and isinstance(value, str) else _REDACTED for name, value in given.items()}
