"""The largest accepted entries can be exported and imported again; larger ones are refused at
the append."""

import json
from collections.abc import Callable

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.json_text import MAX_DEPTH, MAX_NODES
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.domain.storable_json import MAX_STORED_DEPTH
from spawnmesh_transcript.operations.session_files.line_reader import (
    MAX_BODY_BYTES,
    MAX_IMPORTED_BYTES,
    MAX_LINE_BYTES,
    MAX_VALUES,
)

from tests.support.transcript.bodies import call_block, user
from tests.support.transcript.files import HEADER, exported, file_of, send, values
from tests.support.transcript.fixtures import Session, refused

MIB = 1024 * 1024
UNNAMED = '{"type":"toolCall","arguments":%s}'  # An export adds the name beside the arguments.


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
    """Return nested lists down to a text that is JSON as well; redaction searches it for calls."""
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
async def test_AppendEntries__the_largest_entries_round_trip(session: Session, name: str) -> None:
    claim = await session.acquire(1)
    request = pb.AppendEntriesRequest(session_id=session.session_id, claim=claim, request_id="large")
    request.entries.append(RETURN[name]())
    with use_token(session.run_token(claim)):
        await session.service.peer.unary(session.service.stub.AppendEntries, request, timeout_seconds=60)
    await _require_return(session)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name":"sessions_spawn","list":{_list_of(MAX_NODES * 3)}}}',
        json.dumps({"tool": "sessions_spawn", "attachments": [{"content": "as it was delivered"}]}),
    ],
    ids=["many values", "a call in its text"],
)
async def test_AppendEntries__a_mirror_round_trips(session: Session, text: str) -> None:
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
async def test_AppendEntries__entries_that_could_not_round_trip_are_refused(
    session: Session, name: str
) -> None:
    claim = await session.acquire(1)
    with pytest.raises(MeshError) as caught:
        await session.append([user("before"), LOST[name]()], claim=claim)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in caught.value.violations] == ["entries[1]"]
    assert (await session.page()).head.seq == 1


async def test_AppendEntries__a_long_text_that_looks_like_json_round_trips_masked(session: Session) -> None:
    await session.prepare_tenant(2, mask_secrets=True)
    claim = await session.acquire(1)
    key = "ghp_" + "a1B2c3D4e5" * 4
    text = f'{{"path":"C:\\\\{key}","list":{_list_of(MAX_VALUES)}}}'
    await session.append([user(f"{key} {text}"), user(text)], claim=claim)
    out = await exported(session)
    assert key.encode() not in out
    again = session.sibling()
    await send(again, out, chunk_bytes=MIB)
    assert await exported(again) == out


def _line(text: str) -> bytes:
    return f'{{"type":"message","id":"m1","parentId":null,"message":{{"role":"user","content":"{text}"}}}}\n'.encode()


def _unknown(size: int) -> bytes:
    """Return the line of an opaque entry of this size."""
    line = b'{"type":"novel","id":"m1","parentId":null,"text":""}\n'
    return line.replace(b'""', b'"' + b"x" * (size - len(line) + 1) + b'"')


TAKEN = {
    "its entry as large as may be": _unknown(MAX_IMPORTED_BYTES - 512),
    "control characters as they are": _line("\x01" * (7 * MIB)),
    "escapes that an export writes in another way": _line("\\u00e9" * (MIB * 3)),
}
NOT_TAKEN = {
    "its entry larger than may be": _unknown(MAX_IMPORTED_BYTES + 512),
    "more control characters as they are": _line("\x01" * (8 * MIB)),
}


@pytest.mark.parametrize("name", list(TAKEN))
async def test_ImportTranscript__accepted_lines_are_exported_and_accepted_again(
    session: Session, name: str
) -> None:
    first, second = session.sibling(), session.sibling()
    await send(first, file_of(HEADER) + TAKEN[name], chunk_bytes=MIB)
    out = await exported(first)
    await send(second, out, chunk_bytes=MIB)
    assert await exported(second) == out


@pytest.mark.parametrize("name", list(NOT_TAKEN))
async def test_ImportTranscript__lines_that_could_not_be_read_or_exported_are_refused(
    session: Session, name: str
) -> None:
    with refused(Reason.IMPORT_MALFORMED) as facts:
        await send(session.sibling(), file_of(HEADER) + NOT_TAKEN[name], chunk_bytes=MIB)
    assert facts["lines"] == "2"


async def test_ImportTranscript__a_label_of_many_values_without_a_target_is_kept(session: Session) -> None:
    again = session.sibling()
    label = {
        "type": "label",
        "id": "ent_" + "0" * 26,
        "parentId": None,
        "label": "final",
        "targetId": "ent_none",
    }
    line = json.dumps(label)[:-1] + f', "list": {_list_of(MAX_NODES + 10)}}}'
    await send(again, file_of(HEADER, line), chunk_bytes=MIB)
    assert values(await exported(again)) == values(file_of(HEADER, line))
