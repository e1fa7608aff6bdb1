"""Make what is shown of an entry from the message of the transcript service."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2

from spawnmesh_console.domain.readable_json import MAX_READABLE, readable_json
from spawnmesh_console.domain.shown_entries import (
    LAID_OUT_CHARS,
    AnswerMark,
    BlockKind,
    EntryMark,
    ShownBlock,
    ShownEntry,
    Speaker,
)

_JSON = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_MARKS = {
    entry_pb2.LABEL_KIND_SUPERSEDED: AnswerMark.SUPERSEDED,
    entry_pb2.LABEL_KIND_FINAL: AnswerMark.FINAL,
}
_SPEAKERS = {
    message_pb2.ROLE_USER: Speaker.PERSON,
    message_pb2.ROLE_ASSISTANT: Speaker.MODEL,
    message_pb2.ROLE_TOOL_RESULT: Speaker.TOOL,
    message_pb2.ROLE_BASH_EXECUTION: Speaker.TOOL,
}
_METHODS = {
    entry_pb2.SUMMARY_METHOD_NORMAL: "by a model",
    entry_pb2.SUMMARY_METHOD_AGGRESSIVE: "by a model, very short",
    entry_pb2.SUMMARY_METHOD_EXCERPT: "as an excerpt",
}


def mark_of(entry: entry_pb2.Entry) -> EntryMark | None:
    """Return what the entry says about an earlier one; None if it is no such label."""
    mark = _MARKS.get(entry.body.label.kind) if entry.body.HasField("label") else None
    return None if mark is None else EntryMark(entry.body.label.entry_id, mark)


def shown_entries(
    entries: Sequence[entry_pb2.Entry], later: Sequence[entry_pb2.Entry] = ()
) -> list[ShownEntry]:
    """Return the entries that are shown, with the marks that they, and `later` ones, give them."""
    labels = [label for entry in (*entries, *later) if (label := mark_of(entry)) is not None]
    marks = {label.entry_id: label.mark for label in labels}
    shown = [one for entry in entries if (one := shown_entry(entry, LAID_OUT_CHARS)) is not None]
    return [replace(one, mark=marks.get(one.entry_id)) for one in shown]


def shown_entry(entry: entry_pb2.Entry, max_count: int | None = None) -> ShownEntry | None:
    """Return what is shown of the entry; None for a header and for a mark on another entry.

    With `max_count`, arguments of calls are laid out up to so many characters.
    """
    body = entry.body
    begun = ShownEntry(
        entry.seq,
        entry.entry_id,
        entry.create_time.ToDatetime(UTC),
        Speaker.MESH,
        "",
        token_count=entry.token_count,
    )
    match body.WhichOneof("kind"):
        case "message":
            return _of_message(begun, body.message, max_count)
        case "mirror":
            copied = _of_message(begun, body.mirror.message, max_count)
            return replace(copied, heading=f"Delivered to {body.mirror.destination}: {copied.heading}")
        case "system_note":
            return replace(
                begun,
                heading=f"Note of the mesh: {body.system_note.topic}",
                blocks=(ShownBlock(BlockKind.TEXT, body.system_note.text),),
                is_folded=True,
                explanation="The model reads this note as a message of the user.",
            )
        case "model_change":
            change = body.model_change
            said = " · ".join(part for part in (change.model, change.thinking_level) if part)
            return replace(begun, heading=f"From here on: {said}")
        case "compaction":
            return _of_summary(begun, body.compaction)
        case "branch_summary":
            return _folded(
                begun, "Summary of an abandoned branch", BlockKind.TEXT, body.branch_summary.summary
            )
        case "custom":
            data = readable_json(body.custom.data_json)
            return _folded(begun, f"Data: {body.custom.custom_type}", BlockKind.DATA, data)
        case "opaque":
            data = readable_json(body.opaque.entry_json)
            return _folded(begun, f"Imported: {body.opaque.type}", BlockKind.DATA, data)
        case "header" if body.header.forked_from_session_id:
            return replace(begun, heading=f"Forked from {body.header.forked_from_session_id}")
        case _:
            return None


def _of_message(begun: ShownEntry, message: message_pb2.Message, max_count: int | None) -> ShownEntry:
    speaker = _SPEAKERS.get(message.role, Speaker.MESH)
    heading = {
        Speaker.PERSON: "Message",
        Speaker.MODEL: message.model or "Answer",
        Speaker.TOOL: message.tool_name or "Command",
        Speaker.MESH: message.custom_type or "Message",
    }[speaker]
    blocks = [_of_block(block, place, max_count) for place, block in enumerate(message.content)]
    if message.HasField("bash_execution"):
        blocks.insert(0, ShownBlock(BlockKind.DATA, message.bash_execution.command, "command"))
    return replace(
        begun,
        speaker=speaker,
        heading=heading,
        blocks=tuple(block for block in blocks if block is not None),
        is_error=message.is_error,
        is_folded=speaker is Speaker.TOOL,
    )


def _of_block(block: message_pb2.ContentBlock, place: int, max_count: int | None) -> ShownBlock | None:
    match block.WhichOneof("block"):
        case "text":
            return ShownBlock(BlockKind.TEXT, block.text.text) if block.text.text else None
        case "thinking":
            return ShownBlock(BlockKind.THINKING, block.thinking.text or "(the provider keeps it secret)")
        case "tool_call":
            return ShownBlock(
                BlockKind.CALL, arguments_of(block.tool_call.block_json, max_count), block.tool_call.name
            )
        case "image":
            return ShownBlock(
                BlockKind.IMAGE, "", block.image.mime_type, place, size_bytes=len(block.image.data)
            )
        case _:
            return None


def _of_summary(begun: ShownEntry, summary: entry_pb2.Compaction) -> ShownEntry:
    sources = summary.sources
    heading = "Summary of older entries"
    if summary.HasField("sources"):
        count = f"{sources.entry_count:,} entries, {sources.token_count:,} tokens"
        heading = f"Summary of {count}, {_METHODS.get(sources.method, 'by its writer')}"
    explanation = "Models read this in place of the entries, which stay readable here."
    return replace(_folded(begun, heading, BlockKind.TEXT, summary.summary), explanation=explanation)


def _folded(begun: ShownEntry, heading: str, kind: BlockKind, text: str) -> ShownEntry:
    blocks = (ShownBlock(kind, text),) if text else ()
    return replace(begun, heading=heading, blocks=blocks, is_folded=True)


def arguments_of(block_json: str, max_count: int | None = None) -> str:
    """Return the arguments of a call over several lines, up to `max_count` characters; the complete
    block if they are not there.

    Numbers keep their digits. A long block stays in one line.
    """
    if len(block_json) > MAX_READABLE:
        return block_json
    try:
        members = dict(_members(block_json))
        found = members.get("arguments", members.get("input", block_json))
        text = json.loads(found) if found.startswith('"') else found
    except (ValueError, RecursionError, IndexError):
        return block_json
    return readable_json(text, max_count)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a JSON object and the texts of their values.

    Raises ValueError or IndexError for a text that is none.
    """
    at = _after_space(text, 0)
    while text[at] in "{,":
        name, at = _JSON.raw_decode(text, _after_space(text, at + 1))
        begin = _after_space(text, _after_space(text, at) + 1)
        _, at = _JSON.raw_decode(text, begin)
        yield name, text[begin:at]
        at = _after_space(text, at)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
