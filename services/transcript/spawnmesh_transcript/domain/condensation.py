"""Condensed messages: what a context leaves out of messages that are no longer fresh, if the
transcript does not fit the budget.

A condensed message has notes in place of texts of tools, of long strings in the arguments of calls,
and of images. Each note names a file, which is the exact text or image: the id of the condensed
message, the index of the content block, and, in a call, the index of the string among all strings
of its arguments. So a file is found in the stored message alone, whatever is left out.

Texts of users and models are never left out. Thinking is left out whole, or not at all.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from spawnmesh_transcript.domain.stub_text import DESCRIBE_TOOL

CONDENSED_BYTES = 1_500
"""A shorter text is not left out: it is hardly longer than the note, and worth more."""

FILE_ID = re.compile(r"(file_[0-9a-z]{26})_([0-9]{1,3})(?:_([0-9]{1,6}))?")

_SURROGATE = re.compile("[\ud800-\udfff]")
_ARGUMENT_KEYS = ("arguments", "input", "args")


class CondensedFile(NamedTuple):
    """A text or image that a condensed message leaves out.

    `string_index` is set for a string in the arguments of a call.
    """

    message_id: str
    block_index: int
    string_index: int | None

    @property
    def file_id(self) -> str:
        return condensed_file_id(*self)


def condensed_file_id(message_id: str, block_index: int, string_index: int | None = None) -> str:
    """Return the id of a file of the condensed message with this id."""
    place = f"{message_id}_{block_index}"
    return place if string_index is None else f"{place}_{string_index}"


def parse_file_id(file_id: str) -> CondensedFile | None:
    """Return the file of a condensed message that the id names, None for any other id."""
    found = FILE_ID.fullmatch(file_id)
    if found is None:
        return None
    return CondensedFile(found[1], int(found[2]), None if found[3] is None else int(found[3]))


def argument_note(file_id: str, size_bytes: int) -> str:
    """Return what stands in place of a long string in the arguments of a call."""
    return f"[Left out: {file_id} | {size_bytes:,} bytes. To read it, call {DESCRIBE_TOOL}.]"


def replace_strings(block_json: str, replace: Callable[[int, str], str]) -> str | None:
    """Return a tool call of any provider's shape with other strings in its arguments.

    `replace` gets each string, keys excluded, with its index, and returns what stands in its place.
    All else keeps its value, so the arguments keep their shape. Returns None if nothing changes, or
    if the call has no arguments in JSON.
    """
    try:
        block = json.loads(block_json)
        holder, key = _arguments_of(block)
        written = holder[key]
        arguments = json.loads(written) if isinstance(written, str) else written
        strings = _Strings(replace)
        replaced = strings.walk(arguments)
        if not strings.is_changed:
            return None
        holder[key] = _encode(replaced) if isinstance(written, str) else replaced
        return _encode(block)
    except (ValueError, LookupError, RecursionError):
        return None


def string_at(block_json: str, index: int) -> str | None:
    """Return a string of a call's arguments by its index, None if there is none."""
    found: list[str] = []

    def keep(place: int, text: str) -> str:
        if place == index:
            found.append(text)
        return text

    replace_strings(block_json, keep)
    return found[0] if found and not _SURROGATE.search(found[0]) else None


class _Strings:
    """Replace the strings of a JSON value in document order."""

    def __init__(self, replace: Callable[[int, str], str]) -> None:
        self._replace = replace
        self._count = 0
        self.is_changed = False

    def walk(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.walk(member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.walk(member) for member in value]
        if not isinstance(value, str):
            return value
        replaced = self._replace(self._count, value)
        self._count += 1
        self.is_changed = self.is_changed or replaced is not value
        return replaced


def _arguments_of(block: Any) -> tuple[dict[str, Any], str]:
    """Return the object that has the arguments, and their key. Raises LookupError."""
    if isinstance(block, dict):
        function = block.get("function")
        for holder in (block, function) if isinstance(function, dict) else (block,):
            for key in _ARGUMENT_KEYS:
                if key in holder:
                    return holder, key
    raise LookupError("the call has no arguments")


def _encode(value: Any) -> str:
    """Return compact JSON. Raises ValueError for a lone surrogate, which no body can have."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text.encode()
    return text
