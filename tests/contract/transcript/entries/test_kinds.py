"""Every kind of entry: its writers, and that it is read back unchanged."""

import json
from collections.abc import Callable

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
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
    text_of,
    user,
)
from tests.support.transcript.fixtures import Session, refused

SPAWN = '{"type":"toolCall","name":"sessions_spawn","arguments":{"attachments":[{"name":"a","content":"HIDDEN"}]}}'
KINDS: dict[str, pb.EntryBody] = {
    "user": user("u"),
    "assistant": assistant("a"),
    "result": result("c", "r"),
    "bash": bash("ls -l", "total 0"),
    "extension": extension("e"),
    "note": note("n"),
    "model": pb.EntryBody(model_change=pb.ModelChange(model="p/m")),
    "thinking": pb.EntryBody(model_change=pb.ModelChange(thinking_level="high")),
    "compaction": pb.EntryBody(
        compaction=pb.Compaction(summary="so far", token_count_before=9, token_count_after=2)
    ),
    "branch": pb.EntryBody(branch_summary=pb.BranchSummary(summary="tried")),
    "custom": pb.EntryBody(custom=pb.Custom(custom_type="t", data_json=' {"b": 1.0, "a": [1e5]} ')),
    "custom without data": pb.EntryBody(custom=pb.Custom(custom_type="t")),
    "opaque": pb.EntryBody(
        opaque=pb.Opaque(type="novel", entry_json='{"type":"novel", "n": 1e400, "x": "\\u0000"}')
    ),
}
READ_BY_MODELS = ("user", "assistant", "bash", "extension", "note")


@pytest.mark.parametrize("name", list(KINDS))
async def test_AppendEntries__a_run_writes_every_kind_and_reads_it_back_unchanged(
    session: Session, name: str
) -> None:
    claim = await session.acquire(1)
    await session.append([KINDS[name]], claim=claim)
    (entry,) = await session.entries(after_seq=1)
    assert entry.body == KINDS[name]
    assert (entry.writer.run_id, entry.writer.client) == (claim.run_id, "")
    read = list((await session.context()).entries)
    assert read == ([entry] if name in READ_BY_MODELS else [])
    assert (entry.token_count > 0) == (name in READ_BY_MODELS or name == "result")


async def test_AppendEntries__the_tokens_of_a_bash_execution_are_of_command_and_output(
    session: Session,
) -> None:
    claim = await session.acquire(1)
    await session.append([bash("hello world", "hello world")], claim=claim)
    assert (await session.entries(after_seq=1))[0].token_count == 4


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("user", "note")])
async def test_AppendEntries__a_service_writes_user_messages_and_notes_without_a_claim(
    session: Session, name: str
) -> None:
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await session.append([user("u"), KINDS[name]])
    assert (await session.page()).head.seq == 1


async def test_AppendEntries__a_mirror_is_for_clients_with_the_permission(session: Session) -> None:
    claim = await session.acquire(1)
    run, of_service, client = session.run_token(claim), session.service_token(), session.client_token()
    for held, token in ((claim, run), (claim, of_service), (None, of_service), (None, client)):
        with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
            await session.append([mirror("m")], claim=held, token=token)
    await session.append([mirror("m")], token=session.mirror_token())
    (entry,) = await session.entries(after_seq=1)
    assert entry.body == mirror("m")
    assert entry.writer == pb.Writer(client="gateway")
    assert entry.token_count == 0


@pytest.mark.parametrize("name", list(KINDS))
async def test_AppendEntries__a_client_with_the_permission_writes_only_mirrors(
    session: Session, name: str
) -> None:
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await session.append([mirror("m"), KINDS[name]], token=session.mirror_token())
    assert (await session.page()).head.seq == 1


async def test_AppendEntries__a_mirror_is_no_turn(session: Session) -> None:
    await session.append([user("task")])
    copied = pb.EntryBody(mirror=pb.Mirror(message=user("delivered").message))
    await session.append([copied], token=session.mirror_token())
    context = await session.context(1)
    assert [text_of(entry) for entry in context.entries] == ["task"]
    assert context.dropped_entry_count == 0


async def test_AppendEntries__the_message_of_a_mirror_is_checked_and_redacted(session: Session) -> None:
    token = session.mirror_token()
    empty = pb.EntryBody(mirror=pb.Mirror(message=content_pb.Message(role=content_pb.ROLE_TOOL_RESULT)))
    with refused(Reason.INVALID_REQUEST):
        await session.append([empty], token=token)
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[call_block("c", SPAWN, "sessions_spawn")]
    )
    await session.append([pb.EntryBody(mirror=pb.Mirror(message=message))], token=token)
    (entry,) = await session.entries(after_seq=1)
    assert "HIDDEN" not in str(entry)
    assert "$redacted" in entry.body.mirror.message.content[0].tool_call.block_json


@pytest.mark.parametrize(
    "wrapped",
    [
        f'{{"message":{{"content":[{SPAWN}]}}}}',
        f'{{"deep":[[{{"x":{SPAWN}}}]]}}',
        json.dumps({"line": f'{{"m":[{SPAWN}]}}'}),
        SPAWN,
    ],
    ids=["in content", "nested", "in a string", "itself"],
)
async def test_AppendEntries__attachments_in_entries_of_unknown_shape_are_redacted(
    session: Session, wrapped: str
) -> None:
    claim = await session.acquire(1)
    custom = pb.EntryBody(custom=pb.Custom(custom_type="t", data_json=wrapped))
    opaque = pb.EntryBody(opaque=pb.Opaque(type="t", entry_json=wrapped))
    await session.append([custom, opaque], claim=claim)
    for entry in await session.entries(after_seq=1):
        assert "HIDDEN" not in str(entry)
        assert "$redacted" in str(entry)


async def test_AppendEntries__entries_that_only_mention_the_spawn_tool_are_stored_byte_for_byte(
    session: Session,
) -> None:
    claim = await session.acquire(1)
    body = pb.EntryBody(
        custom=pb.Custom(
            custom_type="t", data_json='{ "tip":"use sessions_spawn", "attachments":[{"content":"kept"}]}'
        )
    )
    await session.append([body], claim=claim)
    assert (await session.entries(after_seq=1))[0].body == body


def _compaction(entry_id: str) -> pb.EntryBody:
    return pb.EntryBody(compaction=pb.Compaction(summary="s", first_kept_entry_id=entry_id))


def _branch(entry_id: str) -> pb.EntryBody:
    return pb.EntryBody(branch_summary=pb.BranchSummary(summary="s", from_entry_id=entry_id))


@pytest.mark.parametrize("summary", [_compaction, _branch])
async def test_AppendEntries__a_summary_refers_to_entries_of_the_same_transcript(
    session: Session, summary: Callable[[str], pb.EntryBody]
) -> None:
    claim = await session.acquire(1)
    kept = (await session.append([assistant("kept")], claim=claim)).entries[0].entry_id
    other = session.sibling()
    await other.create()
    for missing in (new_id(IdKind.ENTRY), (await other.append([user("hi")])).entries[0].entry_id):
        with refused(Reason.NOT_FOUND):
            await session.append([summary(missing)], claim=claim)
    await session.append([summary(kept)], claim=claim)
    assert (await session.entries())[-1].body == summary(kept)
