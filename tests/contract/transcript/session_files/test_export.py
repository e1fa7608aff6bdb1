"""ExportTranscript: the exported session file can be imported again."""

import json

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import (
    assistant,
    bash,
    call_block,
    extension,
    mirror,
    note,
    result,
    superseded,
    text_of,
    user,
)
from tests.support.transcript.files import HEADER, exported, file_of, message, pieces, send, values
from tests.support.transcript.fixtures import Service, Session, refused


async def test_ExportTranscript__entries_appended_here_round_trip(service: Service, session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("u"), note("n")])
    call = content_pb.ContentBlock(
        tool_call=content_pb.ToolCall(
            tool_call_id="c",
            name="read",
            block_json=json.dumps({"type": "toolCall", "id": "c", "name": "read", "arguments": {"n": 1.5}}),
        )
    )
    thought = content_pb.ContentBlock(thinking=content_pb.Thinking(text="t", signature="s"))
    said = content_pb.Message(role=content_pb.ROLE_ASSISTANT, model="a/b/c", content=[thought, call])
    bodies = [
        entry_pb2.EntryBody(message=said),
        result("c", "r"),
        bash("ls", "out"),
        extension("e"),
        assistant("x", "odd"),
        entry_pb2.EntryBody(model_change=entry_pb2.ModelChange(model="p/m")),
        entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary="s", token_count_before=3)),
        entry_pb2.EntryBody(custom=entry_pb2.Custom(custom_type="t", data_json="[1]")),
        entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="novel", entry_json='{"a":1}')),
    ]
    await session.append(bodies, claim=claim)
    await session.append([mirror("m")], token=session.mirror_token())
    out = await exported(session)
    again = service.session()
    await send(again, out)
    assert await exported(again) == out
    before, after = await session.entries(), await again.entries()
    for one, other in zip(before[1:7], after[1:7], strict=True):
        if one.body.HasField("message") and one.body.message.role != content_pb.ROLE_CUSTOM:
            other.body.ClearField("source")
            assert one.body == other.body
    lines = values(out)
    assert [line["parentId"] for line in lines[1:]] == [None, *(line["id"] for line in lines[1:-1])]


async def test_ExportTranscript__labels_round_trip(service: Service, session: Session) -> None:
    claim = await session.acquire(1)
    first = await session.append([user("task"), assistant("draft")], claim=claim)
    final = await session.append([assistant("answer")], claim=claim)
    label = entry_pb2.Label(entry_id=final.entries[0].entry_id, kind=entry_pb2.LABEL_KIND_FINAL)
    await session.append(
        [superseded(first.entries[1].entry_id), entry_pb2.EntryBody(label=label)], claim=claim
    )
    out = await exported(session)
    again = service.session()
    await send(again, out)
    await again.append([user("more")])
    [_, _, draft, _, *marks, more] = await again.entries()
    assert [mark.body.label.kind for mark in marks] == [
        entry_pb2.LABEL_KIND_SUPERSEDED,
        entry_pb2.LABEL_KIND_FINAL,
    ]
    assert marks[0].body.label.entry_id == draft.entry_id
    assert await said(again) == [*await said(session), "more"] == ["task", "answer", "more"]
    assert (
        (await again.context()).superseded_entry_count
        == (await session.context()).superseded_entry_count
        == 1
    )

    bodies = [superseded(more.entry_id), superseded((await again.entries())[3].entry_id)]
    await again.append(bodies, claim=await again.acquire(1))
    out = await exported(again)
    third = service.session()
    await send(third, out)
    assert await exported(third) == out
    assert await said(third) == await said(again) == ["task"]


async def test_ImportTranscript__labels_on_foreign_or_unknown_entries_mark_nothing(service: Service) -> None:
    fresh = service.session()
    ours, later = new_id(IdKind.ENTRY), new_id(IdKind.ENTRY)
    data = file_of(
        HEADER,
        message(1),
        {"type": "label", "id": "m2", "parentId": "m1", "targetId": "m1", "label": "superseded"},
        {"type": "label", "id": ours, "parentId": "m2", "targetId": "m3", "label": "superseded"},
        {"type": "label", "id": later, "parentId": ours, "targetId": "m1", "label": "start"},
        {**message(3), "parentId": later},
    )
    await send(fresh, data)
    assert [entry.body.WhichOneof("kind") for entry in await fresh.entries()][2:5] == ["opaque"] * 3
    assert await said(fresh) == ["text 1", "text 3"]
    assert values(await exported(fresh)) == values(data)


async def said(session: Session) -> list[str]:
    """Return the entries that a model reads."""
    return [text_of(entry) for entry in (await session.context()).entries]


async def test_ExportTranscript__resumes_after_a_position(service: Service) -> None:
    fresh = service.session()
    lines = [HEADER, *(message(number, content="y" * 700) for number in range(1, 1500))]
    lines.insert(3, {**message(0, content="z" * 700_000), "id": "large"})
    data = file_of(*lines)
    await send(fresh, data, chunk_bytes=200_000)
    await fresh.append([user("native")])
    whole = await exported(fresh)
    assert values(whole)[:-1] == values(data)
    assert values(whole)[-1]["parentId"] == "m1499"
    received, at, seqs = b"", {0: 0}, set()
    async for piece in pieces(fresh):
        assert len(piece.data) <= 256 * 1024
        received += piece.data
        if piece.read_seq not in seqs:
            at[piece.read_seq] = len(received)
            seqs.add(piece.read_seq)
    assert received == whole
    assert len(at) > 4
    for seq, length in at.items():
        assert whole[:length] + await exported(fresh, after_seq=seq) == whole
    with refused(Reason.NOT_FOUND):
        [piece async for piece in pieces(fresh, after_seq=1, incarnation="inc_other")]


async def test_ExportTranscript__is_for_the_tenants_clients(session: Session) -> None:
    claim = await session.acquire(1)
    with refused(Reason.CALLER_NOT_ALLOWED):
        [piece async for piece in pieces(session, token=session.run_token(claim))]
    stranger = Session(session.service, f"{session.tenant_id}-x", session.session_id)
    with refused(Reason.NOT_FOUND):
        [piece async for piece in pieces(stranger)]


@pytest.mark.parametrize(
    "value",
    [
        '"\\ud800"',
        "9" * 5000,
        "0.1234567890123456789012345",
        "1e400",
        '"a\nb\tc"',
        "[1,\n2]",
        "[" * 90 + "]" * 90,
    ],
    ids=lambda value: value[:12],
)
async def test_ExportTranscript__writes_json_that_every_reader_accepts(session: Session, value: str) -> None:
    claim = await session.acquire(1)
    block = f'{{"type":"toolCall","id":"c","name":"read","arguments":{{"v":{value}}}}}'
    odd = f'{{"function":"read","arguments":{{"v":{value}}}}}'
    bodies = [
        entry_pb2.EntryBody(
            message=content_pb.Message(
                role=content_pb.ROLE_ASSISTANT,
                content=[
                    call_block("c", block, "read"),
                    call_block("d", odd, "read"),
                    call_block("e", '{"type":["toolCall"],"id":"e","name":"read"}', "read"),
                ],
            )
        ),
        entry_pb2.EntryBody(custom=entry_pb2.Custom(custom_type="t", data_json=f"[{value}]")),
        entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="novel", entry_json=f'{{"v":{value}}}')),
    ]
    await session.append(bodies, claim=claim)
    out = (await exported(session)).decode()
    spelled = value.replace("\n2", " 2").replace("\n", "\\u000a").replace("\t", "\\u0009")
    assert [line.count(spelled) for line in out.removesuffix("\n").split("\n")] == [0, 3, 1, 1]
    again = session.sibling()
    await send(again, out.encode())
    assert (await exported(again)).decode() == out
