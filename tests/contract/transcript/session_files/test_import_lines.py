"""Unusual lines in session files: empty lines, texts that look like calls, and unknown ids."""

import asyncio
import json
import os
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb

from tests.support.transcript.bodies import call_block, text_of, user
from tests.support.transcript.files import HEADER, exported, file_of, message, send, values
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.tables import Superuser, rows_of

CALL = json.dumps(
    {
        "name": "sessions_spawn",
        "arguments": {"task": "t", "attachments": [{"name": "a.txt", "content": "kept"}]},
    }
)


async def said(session: Session) -> list[str]:
    """Return the entries that a model reads."""
    return [text_of(entry) for entry in (await session.context()).entries]


async def test_ImportTranscript__many_empty_lines_do_not_delay_other_appends(
    service: Service, superuser: Superuser
) -> None:
    """Import more files than the process has worker threads, while another session appends."""
    others = service.session()
    await others.create()
    data = file_of(HEADER, message(1)) + b"\n" * 1_000_000
    files = [service.session() for _ in range(min(32, (os.cpu_count() or 1) + 4) + 2)]
    for one in files:
        await one.enter_tenant()
    importing = [asyncio.create_task(send(one, data, chunk_bytes=3_000_000)) for one in files]
    try:
        for one in files:
            while "imports" not in await rows_of(superuser, one.tenant_id):
                await asyncio.sleep(0.02)
        for _ in range(3):
            await others.append([user("word " * 10_000)])
        assert not all(task.done() for task in importing), "the appends waited for the imports"
    finally:
        for task in importing:
            task.cancel()
        await asyncio.gather(*importing, return_exceptions=True)


async def test_ImportTranscript__empty_lines_are_stored_and_compared_as_any_line(service: Service) -> None:
    fresh = service.session()
    data = b"\n" * 40_000 + file_of(message(1)) + b"\n" * 40_000 + file_of(message(2)).removesuffix(b"\n")
    data = file_of(HEADER) + data
    first = await send(fresh, data, chunk_bytes=1_000_000)
    assert (first.line_count, first.entry_count, first.durable_bytes) == (80_003, 3, len(data))
    assert await send(fresh, data, chunk_bytes=100_000) == first
    assert await exported(fresh) == data


async def test_ImportTranscript__texts_that_look_like_calls_are_stored_as_by_an_append(
    service: Service,
) -> None:
    imported, appended = service.session(), service.session()
    blocks = [
        {"type": "thinking", "thinking": CALL, "thinkingSignature": "c2ln"},
        {"type": "text", "text": CALL},
    ]
    result = [{"type": "text", "text": CALL}]
    lines = [
        HEADER,
        message(1, content=CALL),
        message(2, "assistant", blocks),
        message(3, "toolResult", result, toolCallId="c", toolName="sessions_spawn"),
    ]
    await send(imported, file_of(*lines))
    assert values(await exported(imported)) == lines
    await appended.create()
    text = content_pb.ContentBlock(text=content_pb.Text(text=CALL))
    thinking = content_pb.ContentBlock(thinking=content_pb.Thinking(text=CALL, signature="c2ln"))
    answer = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[thinking, text])
    said_back = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT, content=[text], tool_call_id="c", tool_name="sessions_spawn"
    )
    bodies = [user(CALL), entry_pb.EntryBody(message=answer), entry_pb.EntryBody(message=said_back)]
    await appended.append(bodies, claim=await appended.acquire(1))
    ways = [[entry.body.message for entry in (await one.entries())[1:]] for one in (imported, appended)]
    assert ways[0] == ways[1]


ODD_IDS = {"a lone surrogate": "\ud800", "NUL": "a\x00b", "spaces": " "}


@pytest.mark.parametrize("name", list(ODD_IDS))
async def test_ImportTranscript__unusual_ids_name_the_same_parent(service: Service, name: str) -> None:
    fresh = service.session()
    lines: list[Any] = [
        HEADER,
        {**message(1), "id": ODD_IDS[name]},
        {**message(2), "parentId": ODD_IDS[name]},
        {**message(3), "parentId": ODD_IDS[name]},
    ]
    await send(fresh, file_of(*lines))
    entries = await fresh.entries()
    assert [entry.parent_entry_id for entry in entries[2:4]] == [entries[1].entry_id] * 2
    assert await said(fresh) == ["text 1", "text 3"]
    assert values(await exported(fresh)) == lines


@pytest.mark.parametrize("target", ["nowhere", HEADER["id"], None, "l"])
async def test_ImportTranscript__an_unknown_leaf_ends_no_branch(service: Service, target: str | None) -> None:
    fresh = service.session()
    leaf = {"type": "leaf", "id": "l", "parentId": "m3", "targetId": target}
    lines = [HEADER, message(1), message(2, "assistant"), {**message(3), "parentId": "m1"}, leaf]
    await send(fresh, file_of(*lines))
    assert await said(fresh) == ["text 1", "text 3"]
    assert values(await exported(fresh)) == lines


@pytest.mark.parametrize("data", ["", "QQ==", "QR==", "QUI=", "QUJ=", "QUJD", "QQ", "QQ=", "Q Q=="])
async def test_ImportTranscript__base64_of_any_spelling_round_trips(service: Service, data: str) -> None:
    fresh = service.session()
    lines = file_of(HEADER, message(1, content=[{"type": "image", "mimeType": "image/png", "data": data}]))
    await send(fresh, lines)
    assert values(await exported(fresh)) == values(lines)


async def test_ExportTranscript__escapes_characters_that_some_readers_take_for_line_ends(
    service: Service,
) -> None:
    text = "one\x85two\u2028three\u2029four\nfive"
    fresh = service.session()
    await fresh.create()
    claim = await fresh.acquire(1)
    block = json.dumps(
        {"type": "toolCall", "id": "c", "name": "read", "arguments": {"x": text}}, ensure_ascii=False
    )
    said = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block("c", block)])
    await fresh.append([user(text), entry_pb.EntryBody(message=said)], claim=claim)
    out = (await exported(fresh)).decode()
    lines = out.splitlines()
    assert len(lines) == 3
    assert json.loads(lines[1])["message"]["content"] == [{"type": "text", "text": text}]
    assert json.loads(lines[2])["message"]["content"][0]["arguments"] == {"x": text}
