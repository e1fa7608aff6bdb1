"""Entries of transcripts that are compared."""

import json
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from spawnmesh.content.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    ContentBlock,
    Message,
    Text,
    Thinking,
    ToolCall,
)
from spawnmesh.transcript.v1.entry_pb2 import (
    LABEL_KIND_FINAL,
    LABEL_KIND_SUPERSEDED,
    Entry,
    EntryBody,
    Header,
    Label,
    ModelChange,
    SystemNote,
)
from spawnmesh_client.divergence import ReadEntries
from spawnmesh_core.ids import IdKind, new_id


def header(source: str = "") -> EntryBody:
    """Return the first entry of a transcript."""
    return EntryBody(header=Header(session_id=new_id(IdKind.SESSION), forked_from_session_id=source))


def user(text: str) -> EntryBody:
    """Return a message of a person."""
    return EntryBody(message=Message(role=ROLE_USER, content=[ContentBlock(text=Text(text=text))]))


def answer(text: str, model: str = "fake/one", thought: str = "") -> EntryBody:
    """Return an answer of a model."""
    thinking = [ContentBlock(thinking=Thinking(text=thought, signature=new_id(IdKind.EVENT)))]
    content = [*(thinking if thought else ()), ContentBlock(text=Text(text=text))]
    return EntryBody(message=Message(role=ROLE_ASSISTANT, model=model, content=content))


def calls(*made: tuple[str, dict[str, Any]], model: str = "fake/one", key: str = "arguments") -> EntryBody:
    """Return calls of tools, each a name and arguments. Their ids are new each time."""
    blocks = []
    for name, arguments in made:
        call_id = f"call_{secrets.token_hex(8)}"
        block = json.dumps({"type": "toolCall", "id": call_id, "name": name, key: arguments})
        blocks.append(ContentBlock(tool_call=ToolCall(tool_call_id=call_id, name=name, block_json=block)))
    return EntryBody(message=Message(role=ROLE_ASSISTANT, model=model, content=blocks))


def result(called: EntryBody, number: int, text: str, *, is_error: bool = False) -> EntryBody:
    """Return the result of one of these calls."""
    call = called.message.content[number].tool_call
    message = Message(
        role=ROLE_TOOL_RESULT, tool_call_id=call.tool_call_id, tool_name=call.name, is_error=is_error,
        content=[ContentBlock(text=Text(text=text))],
    )  # fmt: skip
    return EntryBody(message=message)


def note(text: str) -> EntryBody:
    """Return a note of the mesh."""
    return EntryBody(system_note=SystemNote(topic="attachments", text=text))


def model_change(model: str) -> EntryBody:
    """Return a change of the model."""
    return EntryBody(model_change=ModelChange(model=model))


def superseded(back: int = 1) -> tuple[bool, int]:
    """Return a label for `transcript`: the entry so many places before is rejected."""
    return True, back


def final(back: int = 1) -> tuple[bool, int]:
    """Return a label for `transcript`: the entry so many places before is the answer."""
    return False, back


def transcript(*bodies: EntryBody | tuple[bool, int], begin: int = 1) -> list[Entry]:
    """Return entries with new ids and dense seqs."""
    entries: list[Entry] = []
    for seq, body in enumerate(bodies, begin):
        if isinstance(body, tuple):
            kind = LABEL_KIND_SUPERSEDED if body[0] else LABEL_KIND_FINAL
            label = Label(entry_id=entries[-body[1]].entry_id, kind=kind)
            made = EntryBody(label=label)
        else:
            made = body
        entries.append(Entry(entry_id=new_id(IdKind.ENTRY), seq=seq, body=made))
        entries[-1].create_time.FromSeconds(seq)
    return entries


def reading(entries: Sequence[Entry]) -> ReadEntries:
    """Return what reads these entries."""

    async def read(after_seq: int) -> AsyncIterator[Entry]:
        for entry in entries:
            if entry.seq > after_seq:
                yield entry

    return read


def seqs_of(entries: Iterable[Any]) -> list[int]:
    """Return the seqs of entries."""
    return [entry.seq for entry in entries]
