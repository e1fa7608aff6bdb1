"""The largest entries that are appended can be exported and taken in again; what could not be is not taken to begin with."""

import json
from collections.abc import Callable

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.json_text import MAX_DEPTH, MAX_NODES
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.domain.storable_json import MAX_STORED_DEPTH
from spawnmesh_transcript.line_bodies import MAX_BODY_BYTES, MAX_LINE_BYTES

from tests.contract.transcript_files import exported, send
from tests.contract.transcript_fixtures import Session, call_block, service, session, user

__all__ = ["service", "session"]

MIB = 1024 * 1024
UNNAMED = '{"type":"toolCall","arguments":%s}'  # An export writes it beside its arguments.


def _image(size: int) -> entry_pb.EntryBody:
    image = content_pb.Image(mime_type="image/png", data=b"\x89PNG" + bytes(size - 4))
    said = content_pb.Message(role=content_pb.ROLE_USER, content=[content_pb.ContentBlock(image=image)])
    return entry_pb.EntryBody(message=said)


def _calls(*blocks: str) -> entry_pb.EntryBody:
    content = [call_block(f"c{number}", block, "read") for number, block in enumerate(blocks)]
    return entry_pb.EntryBody(message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=content))


def _opaque(text: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(opaque=entry_pb.Opaque(type="novel", entry_json=text))


def _custom(text: str) -> entry_pb.EntryBody:
    return entry_pb.EntryBody(custom=entry_pb.Custom(custom_type="t", data_json=text))


def _list_of(values: int) -> str:
    return f"[{'0,' * (values - 2)}0]"


def _nested(levels: int) -> str:
    """Lists in each other down to a text that is JSON too, so deep in all; what may be a call is searched."""
    inner = json.dumps("[" * (MAX_DEPTH - levels - 1) + '"sessions_spawn"' + "]" * (MAX_DEPTH - levels - 1))
    return "[" * levels + inner + "]" * levels


RETURN: dict[str, Callable[[], entry_pb.EntryBody]] = {
    "an image": lambda: _image(MAX_BODY_BYTES - 64),
    "a text of control characters": lambda: user("\x01" * (MAX_LINE_BYTES // 6 - 4096)),
    "a text of ends of lines": lambda: user("\x85\u2028" * (2 * MIB - 4096)),
    "a call that is written twice": lambda: _calls(UNNAMED % json.dumps("x" * (MAX_BODY_BYTES // 2 - 256))),
    "a call of many values that is written twice": lambda: _calls(UNNAMED % _list_of(MAX_NODES - 2)),
    "two calls of many values": lambda: _calls(*[UNNAMED % _list_of(MAX_NODES // 2 - 2)] * 2),
    "something unknown": lambda: _opaque(f'{{"text":"{"é" * (8 * MIB - 64 * 1024)}"}}'),
    "many values of something unknown": lambda: _opaque(f'{{"list":{_list_of(MAX_NODES - 1)}}}'),
    "data": lambda: _custom(json.dumps("x" * (MAX_BODY_BYTES - 64))),
    "data as deep as it may be, with text in it": lambda: _custom(_nested(MAX_STORED_DEPTH)),
    "a call as deep as it may be, with text in it": lambda: _calls(UNNAMED % _nested(MAX_STORED_DEPTH - 1)),
}


@pytest.mark.parametrize("name", list(RETURN))
async def test_AppendEntries__the_largest_entries_come_back(session: Session, name: str) -> None:
    claim = await session.acquire(1)
    await session.append([RETURN[name]()], claim=claim)
    await _require_return(session)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name":"sessions_spawn","list":{_list_of(MAX_NODES * 3)}}}',
        json.dumps({"tool": "sessions_spawn", "attachments": [{"content": "as it was delivered"}]}),
    ],
    ids=["many values", "a call in its text"],
)
async def test_AppendEntries__a_mirror_comes_back_as_it_was_delivered(session: Session, text: str) -> None:
    await session.acquire(1)
    mirrored = entry_pb.EntryBody(mirror=entry_pb.Mirror(message=user(text).message))
    await session.append([mirrored], token=session.mirror_token())
    await _require_return(session)


async def _require_return(session: Session) -> None:
    out = await exported(session)
    again = session.sibling()
    await send(again, out, chunk_bytes=MIB)
    assert await exported(again) == out
    (entry,) = await again.entries(after_seq=1)
    assert entry.seq == 2, "one message takes it"


LOST: dict[str, Callable[[], entry_pb.EntryBody]] = {
    "more than an entry may have": lambda: _image(MAX_BODY_BYTES + 1),
    "more control characters": lambda: user("\x01" * (MAX_LINE_BYTES // 6)),
    "a larger call that is written twice": lambda: _calls(UNNAMED % json.dumps("x" * (8 * MIB))),
    "many calls of many values": lambda: _calls(*[UNNAMED % _list_of(MAX_NODES // 2)] * 3),
}


@pytest.mark.parametrize("name", list(LOST))
async def test_AppendEntries__what_would_not_come_back_is_refused(session: Session, name: str) -> None:
    claim = await session.acquire(1)
    with pytest.raises(MeshError) as caught:
        await session.append([user("before"), LOST[name]()], claim=claim)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in caught.value.violations] == ["entries[1]"]
    assert (await session.page()).head.seq == 1
