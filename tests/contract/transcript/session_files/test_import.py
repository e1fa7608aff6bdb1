"""ImportTranscript: a session file is stored completely or not at all, and is exported
unchanged."""

import asyncio
import json
import random
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import text_of
from tests.support.transcript.files import (
    HEADER,
    exported,
    file_of,
    go_on,
    message,
    send,
    send_requests,
    values,
)
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tables import Superuser, rows_of

IMAGE = b64encode(bytes(range(256)) * 4).decode()
LINES: list[Any] = [
    HEADER,
    message(1, content="hello \u4f60\u597d \u2028 end"),
    message(
        2,
        "assistant",
        [
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "c2ln", "extra": [1.50, 2e3]},
            {"text": "both", "type": "text"},
            {
                "type": "toolCall",
                "id": "c1",
                "name": "read",
                "arguments": {"path": "a", "n": 1.0},
                "partial": None,
            },
            {"type": "functionCall", "id": "c2", "name": " Bash ", "arguments": '{"c":"ls"}'},
            {"type": "tool_use", "id": "c3", "name": "grep", "input": {}},
            {"type": "hologram", "data": "kept"},
        ],
        provider="anthropic",
        model="m-1",
        usage={"input": 10, "cost": {"total": 0.0125}},
    ),
    message(
        3, "toolResult", [{"type": "text", "text": "r"}], toolCallId="c1", toolName="read", isError=False
    ),
    message(
        4,
        "toolResult",
        [{"type": "image", "data": IMAGE, "mimeType": "image/png"}],
        tool_use_id="c2",
        isError=True,
    ),
    message(5, "bashExecution", command="ls -l", output="a\nb", exitCode=1, cancelled=False, truncated=True),
    message(6, "custom", "c", customType="todo"),
    message(7, "branchSummary", summary="of a branch", fromId="m2"),
    {"type": "model_change", "id": "m8", "parentId": "m7", "provider": "openai", "modelId": "x"},
    {"type": "thinking_level_change", "id": "m9", "parentId": "m8", "thinkingLevel": "high"},
    {
        "type": "compaction",
        "id": "m10",
        "parentId": "m9",
        "summary": "s",
        "firstKeptEntryId": "m3",
        "tokensBefore": 9,
        "details": {},
    },
    {"type": "custom", "id": "m11", "parentId": "m10", "customType": "state", "data": {"k": [1, None]}},
    {
        "type": "custom_message",
        "id": "m12",
        "parentId": "m11",
        "customType": "hint",
        "content": "h",
        "display": False,
    },
    {"type": "session_info", "id": "m13", "parentId": "m12", "name": "named"},
    {"type": "label", "id": "m14", "parentId": "m13", "targetId": "m2", "label": "start"},
    {"type": "branch_summary", "id": "m15", "parentId": "m14", "fromId": "m2", "summary": "b"},
    {"type": "something_new", "id": "m16", "parentId": "m15", "anything": {"deep": [True]}},
    '{ "type":"message", "id":"m17","parentId":"m16" , "message":{"role":"user","content":"\\ud800 \\u0000 \\u00e9"}}',
    message(18, "narrator", "unknown role"),
    message(19, "toolResult", "answers nothing"),
    {"type": "reset", "id": "m20", "parentId": "m19", "reason": "r", "timestamp": 17},
]


async def test_ImportTranscript__an_export_has_the_same_bytes(service: Service) -> None:
    fresh = service.session()
    data = file_of(*LINES)
    answer = await send(fresh, data)
    assert answer == pb.ImportTranscriptResponse(
        state=pb.IMPORT_STATE_COMPLETE,
        durable_bytes=len(data),
        line_count=len(LINES),
        entry_count=len(LINES),
        dialect=pb.SESSION_FILE_DIALECT_PI,
    )
    assert await exported(fresh) == data
    kinds = [entry.body.WhichOneof("kind") for entry in await fresh.entries()]
    assert kinds[:13] == [
        "header",
        *["message"] * 6,
        "opaque",
        *["model_change"] * 2,
        "compaction",
        "custom",
        "message",
    ]
    assert kinds[13:] == [
        "opaque",
        "opaque",
        "branch_summary",
        "opaque",
        "message",
        "opaque",
        "opaque",
        "opaque",
    ]


async def test_ImportTranscript__known_lines_become_typed_entries(service: Service) -> None:
    fresh = service.session()
    await send(fresh, file_of(*LINES))
    entries = await fresh.entries()
    said = entries[2].body.message
    assert (said.role, said.model) == (content_pb.ROLE_ASSISTANT, "anthropic/m-1")
    assert [block.WhichOneof("block") for block in said.content] == ["thinking", "text", *["tool_call"] * 3]
    assert said.content[0].thinking == content_pb.Thinking(text="hm", signature="c2ln")
    assert [block.tool_call.name for block in said.content[2:]] == ["read", "Bash", "grep"]
    assert entries[3].body.message.tool_call_id == "c1"
    assert entries[4].body.message.is_error
    assert entries[4].body.message.content[0].image.data == bytes(range(256)) * 4
    assert entries[5].body.message.bash_execution == content_pb.BashExecution(
        command="ls -l", exit_code=1, is_truncated=True
    )
    assert entries[8].body.model_change.model == "openai/x"
    assert entries[10].body.compaction.first_kept_entry_id == entries[3].entry_id
    assert (entries[10].body.compaction.token_count_before, entries[10].body.compaction.summary) == (9, "s")
    assert entries[2].parent_entry_id == entries[1].entry_id
    assert IMAGE not in entries[4].body.source.line, "kept once"
    uncompacted = service.session()
    await send(uncompacted, file_of(*LINES[:7]))
    context = await uncompacted.context()
    assert [entry.body.message.role for entry in context.entries][:3] == [
        content_pb.ROLE_USER,
        content_pb.ROLE_ASSISTANT,
        content_pb.ROLE_TOOL_RESULT,
    ]
    assert context.synthetic_result_count == 1


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100_000])
async def test_ImportTranscript__chunks_may_be_cut_anywhere(service: Service, chunk_bytes: int) -> None:
    fresh = service.session()
    data = file_of(*LINES[:4])
    await send(fresh, data.removesuffix(b"\n"), chunk_bytes=chunk_bytes)
    assert values(await exported(fresh)) == values(data)


async def test_ImportTranscript__carriage_returns_blank_lines_and_a_byte_order_mark(service: Service) -> None:
    fresh = service.session()
    data = file_of(*LINES[:3])
    unusual = b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\n")
    await send(fresh, unusual)
    assert await exported(fresh) == unusual
    assert [entry.body.WhichOneof("kind") for entry in await fresh.entries()][:3] == [
        "header",
        "opaque",
        "message",
    ]


async def test_ImportTranscript__resumes_at_the_stored_position(service: Service) -> None:
    fresh = service.session()
    data = file_of(HEADER, *(message(number) for number in range(1, 3000)))
    half = len(data) // 2
    first = await send(fresh, data[:half], finish=False, chunk_bytes=50_000)
    assert first.state == pb.IMPORT_STATE_IMPORTING
    assert 0 < first.durable_bytes <= half
    assert data[first.durable_bytes - 1 : first.durable_bytes] == b"\n"
    with refused(Reason.NOT_FOUND):
        await fresh.entries()
    with refused(Reason.NOT_FOUND):
        await fresh.acquire(1)
    assert await send(fresh, b"", finish=False) == first
    with refused(Reason.IMPORT_OFFSET_DIFFERS) as facts:
        await send(fresh, data[half:], offset=half + 1, chunk_bytes=len(data))
    assert facts["durable_bytes"] == str(first.durable_bytes)
    done = await go_on(fresh, data)
    assert (done.state, done.entry_count) == (pb.IMPORT_STATE_COMPLETE, 3000)
    assert await send(fresh, b"", finish=False) == done
    assert values(await exported(fresh)) == values(data)


async def test_ImportTranscript__a_session_with_a_transcript_or_a_deleted_one_is_refused(
    session: Session,
) -> None:
    with refused(Reason.ALREADY_EXISTS):
        await send(session, file_of(*LINES[:2]))
    await session.delete()
    with refused(Reason.TRANSCRIPT_DELETED):
        await send(session, file_of(*LINES[:2]))


async def test_ImportTranscript__attachment_content_is_redacted_and_markers_are_kept(
    service: Service, superuser: Superuser
) -> None:
    fresh, again = service.session(), service.session()
    secret = f"SECRET-{random.Random(7).randbytes(12).hex()}"
    arguments = {"task": "t", "attachments": [{"name": "a", "content": secret}]}
    calls = [
        {"type": "toolCall", "id": "c1", "name": "Sessions_Spawn", "arguments": arguments},
        {"type": "toolUse", "id": "c2", "name": "spawn_session", "input": json.dumps(arguments)},
        {"type": "hologram", "name": "sessions_spawn", "input": arguments},
    ]
    data = file_of(
        HEADER,
        message(1, "assistant", calls),
        {"type": "novel", "id": "m2", "parentId": "m1", "call": calls[0]},
        message(3, "narrator", calls),
    )
    await send(fresh, data)
    cursor = await superuser.execute(
        "select count(*) from entries where tenant_id = %s and position(%s::bytea in body) > 0",
        (fresh.tenant_id, secret.encode()),
    )
    assert await cursor.fetchone() == (0,)
    out = await exported(fresh)
    assert secret.encode() not in out
    came = values(out)[1]["message"]["content"]
    assert came[0]["arguments"]["attachments"][0]["content"]["$redacted"] == "attachment"
    assert json.loads(came[1]["input"])["attachments"][0]["content"]["bytes"] == len(secret)
    await send(again, out)
    assert await exported(again) == out


async def test_ImportTranscript__secrets_are_masked_if_the_policy_requires_it(service: Service) -> None:
    fresh = service.session()
    await fresh.prepare_tenant(1, mask_secrets=True)
    key = "ghp_" + "a1B2c3D4e5" * 4
    lines = [
        HEADER,
        message(1, content=f"it is {key}"),
        {"type": "novel", "id": "m2", "parentId": "m1", "x": [key]},
    ]
    await send(fresh, file_of(*lines))
    assert values(await exported(fresh)) == values(
        file_of(*lines).replace(key.encode(), b"[$redacted:provider_key]")
    )


async def test_ImportTranscript__only_the_branch_of_the_last_line_is_read(service: Service) -> None:
    fresh = service.session()
    lines: list[Any] = [
        HEADER,
        message(1),
        {**message(2, "assistant"), "id": "left"},
        {**message(3), "parentId": "left", "id": "left2"},
        {**message(4, "assistant"), "parentId": "m1"},
        {**message(5), "parentId": "m4"},
    ]
    lines[2]["parentId"] = "m1"
    await send(fresh, file_of(*lines))
    assert [text_of(entry) for entry in (await fresh.context()).entries] == ["text 1", "text 4", "text 5"]
    assert values(await exported(fresh)) == lines
    by_leaf = service.session()
    lines.append({"type": "leaf", "id": "m6", "parentId": "m5", "targetId": "left2"})
    await send(by_leaf, file_of(*lines))
    assert [text_of(entry) for entry in (await by_leaf.context()).entries] == ["text 1", "text 2", "text 3"]
    assert values(await exported(by_leaf)) == lines


async def test_CreateTranscript__a_fork_of_an_import_has_its_messages_and_not_its_lines(
    service: Service,
) -> None:
    imported = service.session()
    await send(imported, file_of(*LINES[:4]))
    fork = imported.sibling()
    await fork.create(fork_of=imported)
    copies = (await fork.entries())[1:]
    assert [entry.body.message.role for entry in copies][:2] == [
        content_pb.ROLE_USER,
        content_pb.ROLE_ASSISTANT,
    ]
    assert not any(entry.body.HasField("source") for entry in copies)
    await exported(fork)


async def test_ImportTranscript__two_streams_at_once_make_one_transcript(service: Service) -> None:
    fresh = service.session()
    data = file_of(HEADER, *(message(number, content="x" * 2_000) for number in range(1, 1_000)))
    ends = await asyncio.gather(
        *(send(fresh, data, chunk_bytes=300_000) for _ in range(3)), return_exceptions=True
    )
    for end in ends:
        assert isinstance(end, pb.ImportTranscriptResponse) or (
            isinstance(end, MeshError) and end.reason is Reason.IMPORT_OFFSET_DIFFERS
        ), end
    await go_on(fresh, data)
    assert values(await exported(fresh)) == values(data)


async def test_ImportTranscript__a_masking_policy_set_meanwhile_applies_to_the_rest(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    await fresh.prepare_tenant(1, mask_secrets=False)
    key = "ghp_" + "a1B2c3D4e5" * 4
    head = file_of(HEADER, *(message(number, content="y" * 1000) for number in range(1, 700)))
    data = head + file_of(message(700, content=f"it is {key}"))

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(spec=pb.ImportSpec(session_id=fresh.session_id))
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(data=head))
        async with asyncio.timeout(60):
            while "entries" not in await rows_of(superuser, fresh.tenant_id):
                await asyncio.sleep(0.02)
        await fresh.prepare_tenant(2, mask_secrets=True)
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(offset=len(head), data=data[len(head) :]))
        yield pb.ImportTranscriptRequest(finish=pb.ImportFinish())

    with refused(Reason.IMPORT_OFFSET_DIFFERS) as facts:
        await send_requests(fresh, requests())
    assert 0 < int(facts["durable_bytes"]) <= len(head)
    await go_on(fresh, data)
    out = await exported(fresh)
    assert key.encode() not in out
    assert b"it is [$redacted:provider_key]" in out


async def test_ImportTranscript__an_unknown_tenant_is_refused(service: Service, superuser: Superuser) -> None:
    """A valid token does not create its tenant: no purge would remove the rows."""
    fresh = service.session()
    # The fixture would prepare a tenant that it does not know.
    service.tenant_ids.add(fresh.tenant_id)
    with refused(Reason.UNKNOWN_TENANT):
        await send(fresh, file_of(*LINES))
    assert await rows_of(superuser, fresh.tenant_id) == {}
    await fresh.prepare_tenant(1)
    await send(fresh, file_of(*LINES))
    assert values(await exported(fresh)) == values(file_of(*LINES))
