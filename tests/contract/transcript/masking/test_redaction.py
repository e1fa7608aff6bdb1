"""Attachment content of a spawn call is nowhere in the database."""

import hashlib
import json
import secrets
from base64 import b64encode

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import call_block, text_block
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.tables import Superuser, stored_bytes_of


def _said(*blocks: content_pb.ContentBlock) -> entry_pb2.EntryBody:
    return entry_pb2.EntryBody(message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=blocks))


@pytest.mark.parametrize("name", ["sessions_spawn", " Spawn_Session "])
async def test_AppendEntries__attachment_content_is_nowhere_in_the_database(
    session: Session, superuser: Superuser, name: str
) -> None:
    secret = f"SECRET-{secrets.token_hex(16)}"
    encoded = b64encode(secret.encode()).decode()
    arguments = {
        "task": "kept",
        "attachments": [
            {"name": "a", "content": secret},
            {"name": "b", "encoding": "base64", "content": encoded},
        ],
    }
    blocks = [
        json.dumps({"type": "toolUse", "name": name, "input": arguments}),
        json.dumps({"type": "functionCall", "name": name, "arguments": json.dumps(arguments)}),
        json.dumps({"type": "toolCall", "name": name, "arguments": json.dumps(arguments)[:-1]}),
        json.dumps({"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}),
    ]
    claim = await session.acquire(1)
    entries = [
        _said(
            text_block("marker-of-this-test"),
            *(call_block(f"c{index}", block, name) for index, block in enumerate(blocks)),
        )
    ]
    await session.append(entries, claim=claim, key="k")
    dump = await stored_bytes_of(superuser, session.tenant_id)
    assert b"marker-of-this-test" in dump
    for hidden in (secret, encoded, secret.encode().hex(), encoded.encode().hex()):
        assert hidden.encode() not in dump
    (entry,) = await session.entries(after_seq=1)
    calls = [block.tool_call for block in entry.body.message.content[1:]]
    assert {call.name for call in calls} == {name.strip()}
    first, second = json.loads(calls[0].block_json)["input"]["attachments"]
    expected = {
        "$redacted": "attachment",
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "bytes": len(secret),
    }
    assert first["content"] == second["content"] == expected
    assert (await session.append(entries, claim=claim, key="k")).replayed


async def test_AppendEntries__other_blocks_are_kept_byte_for_byte(session: Session) -> None:
    claim = await session.acquire(1)
    block = '{ "name" : "write" , "input":{"attachments":[{"content":"x"}],"n":1.0e5} }'
    body = _said(call_block("c", block, "write"))
    await session.append([body], claim=claim)
    assert (await session.entries(after_seq=1))[0].body == body


async def test_AppendEntries__a_marker_never_comes_back_as_content(session: Session) -> None:
    claim = await session.acquire(1)
    spawn = {"name": "sessions_spawn", "input": {"attachments": [{"name": "a", "content": "bytes"}]}}
    await session.append([_said(call_block("c1", json.dumps(spawn), "sessions_spawn"))], claim=claim)
    stored = (await session.entries(after_seq=1))[0].body.message.content[0].tool_call
    with refused(Reason.ATTACHMENT_CONTENT_IS_MARKER):
        await session.append([_said(call_block("c2", stored.block_json, "sessions_spawn"))], claim=claim)
    marker = json.dumps(json.loads(stored.block_json)["input"]["attachments"][0]["content"])
    for content in ("\ufeff" + marker, json.dumps([json.dumps(marker)]), [json.loads(marker)]):
        spawn = {"name": "sessions_spawn", "input": {"attachments": [{"name": "a", "content": content}]}}
        with refused(Reason.ATTACHMENT_CONTENT_IS_MARKER):
            await session.append([_said(call_block("c2", json.dumps(spawn), "sessions_spawn"))], claim=claim)
    assert (await session.page()).head.seq == 2


@pytest.mark.parametrize("name", ["sessions_spawn", "mcp__mesh__sessions_spawn"])
@pytest.mark.parametrize(
    "misnamed",
    [
        {"attachments": [{"name": "a", "bytes": "SECRET-7f3a"}]},
        {"files": [{"name": "a", "content": "SECRET-7f3a"}]},
        {"files": {"a.txt": "SECRET-7f3a"}},
        {"note": "SECRET-7f3a"},
    ],
    ids=str,
)
async def test_AppendEntries__files_in_unexpected_places_are_not_stored(
    session: Session, name: str, misnamed: dict[str, object]
) -> None:
    claim = await session.acquire(1)
    block = json.dumps({"type": "toolUse", "name": name, "input": {"task": "kept", **misnamed}})
    await session.append([_said(call_block("c", block, name))], claim=claim)
    stored = (await session.entries(after_seq=1))[0].body.message.content[0].tool_call
    assert "SECRET" not in stored.block_json
    assert json.loads(stored.block_json)["input"]["task"] == "kept"
