"""Contexts of transcripts that do not fit the budget: old messages are condensed."""

import json

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.operations.bodies.tokens import message_token_count

from tests.support.transcript.bodies import assistant, bash, text_of, user
from tests.support.transcript.coding_histories import CodingHistory
from tests.support.transcript.condensed import (
    IMAGE,
    NOTE,
    OUTPUT,
    append_all,
    check_pairs,
    undone,
)
from tests.support.transcript.counts import TEXT, recount
from tests.support.transcript.fixtures import refused
from tests.support.transcript.tier import NO_TAIL, Tiered, answering, calling, long_text
from tests.support.transcript.tier_sessions import with_image

CODE = "\n".join(f"    value_{number} = compute({number})  # {number:x}" for number in range(200))
THINKING = content_pb.ContentBlock(thinking=content_pb.Thinking(text="so then " * 100, signature="c2ln"))
BUDGET = 2_000


async def _fill(tiered: Tiered) -> None:
    """Append a message of each kind that is condensed, and an answer after them."""
    write = calling("c1", "write", {"path": "/srv/a.py", "content": CODE, "mode": 0o644})
    write.message.content.insert(0, THINKING)
    bodies = [
        with_image("look at this", b"\x89PNG" + bytes(3_000)),
        write,
        answering("c1", "written", name="write"),
        calling("c2", "read", {"path": "/srv/b.py"}),
        answering("c2", long_text("b", 5_000)),
        bash("make", long_text("m", 4_000)),
        user("go on"),
        assistant("done"),
    ]
    await append_all(tiered, bodies)


async def test_AssembleContext__a_transcript_that_does_not_fit_is_condensed(tiered: Tiered) -> None:
    await _fill(tiered)
    stored = {entry.seq: entry for entry in await tiered.session.entries()}

    context = await tiered.context(BUDGET, tail=NO_TAIL)

    assert context.token_count == sum(entry.token_count for entry in context.entries) <= BUDGET
    assert context.dropped_entry_count == 0
    picture, write, written, read, output, command, more, done = context.entries
    assert picture.body.message.content[0].text.text == "look at this"
    assert IMAGE.fullmatch(picture.body.message.content[1].text.text)
    [call] = write.body.message.content
    arguments = json.loads(call.tool_call.block_json)["arguments"]
    assert NOTE.fullmatch(arguments.pop("content"))
    assert arguments == {"path": "/srv/a.py", "mode": 0o644}
    assert OUTPUT.fullmatch(text_of(output))
    assert OUTPUT.fullmatch(command.body.message.content[0].text.text)
    assert [one.seq for one in context.stubbed] == [entry.seq for entry in (picture, write, output, command)]
    assert all(entry == stored[entry.seq] for entry in (written, read, more, done))
    for one in context.stubbed:
        assert one.full_token_count == stored[one.seq].token_count
        shown = next(entry for entry in context.entries if entry.seq == one.seq)
        assert shown.token_count == message_token_count(shown.body.message)
        assert await undone(tiered, shown, stored[one.seq]) == _compact(stored[one.seq].body.message)
    assert {entry.seq: entry for entry in await tiered.session.entries()} == stored


async def test_AssembleContext__a_transcript_that_fits_is_complete(tiered: Tiered) -> None:
    await _fill(tiered)
    stored = (await tiered.session.entries())[1:]
    total = sum(entry.token_count for entry in stored)

    assert list((await tiered.context(total, tail=NO_TAIL)).entries) == stored
    assert (await tiered.context(total - 1, tail=NO_TAIL)).stubbed
    await tiered.set_tier(2, is_on=False)
    assert not (await tiered.context(total - 1, tail=NO_TAIL)).stubbed


async def test_AssembleContext__thinking_since_the_newest_user_message_stays(tiered: Tiered) -> None:
    calls = []
    for call_id in ("c1", "c2"):
        call = calling(call_id, "write", {"content": CODE})
        call.message.content.insert(0, THINKING)
        calls += [call, answering(call_id, "written", name="write")]
    await append_all(tiered, [user("task"), *calls, assistant("end")])

    def shown(context: pb.AssembleContextResponse) -> list[list[str | None]]:
        return [
            [block.WhichOneof("block") for block in entry.body.message.content]
            for entry in context.entries
            if entry.body.message.content[-1].HasField("tool_call")
        ]

    context = await tiered.context(1_000, tail=NO_TAIL)
    assert shown(context) == [["thinking", "tool_call"]] * 2
    assert [entry.body.message.content[0] for entry in context.entries[1:-1:2]] == [THINKING] * 2
    assert all(len(one.file_ids) == 1 for one in context.stubbed)
    await tiered.session.append([user("now this")])
    assert shown(await tiered.context(1_000, tail=NO_TAIL)) == [["tool_call"]] * 2


async def test_AssembleContext__the_newest_user_message_is_never_condensed(tiered: Tiered) -> None:
    image = b"\x89PNG" + bytes(9_000)
    await append_all(tiered, [with_image("look", image), assistant("word " * 2_000), assistant("end")])
    first, *_ = (await tiered.context(2_000, tail=NO_TAIL)).entries
    assert first.body.message.content[1].image.data == image


@pytest.mark.parametrize("model", ["openai/gpt-5", "anthropic/claude-sonnet-4-5"])
async def test_AssembleContext__twice_as_much_of_a_coding_history_fits(tiered: Tiered, model: str) -> None:
    budget = 90_000
    await append_all(tiered, CodingHistory().messages(900))
    stored = {entry.seq: entry for entry in await tiered.session.entries()}

    context = await tiered.context(budget, model=model)

    await tiered.set_tier(2, is_on=False)
    complete = await tiered.context(budget, model=model)
    await tiered.set_tier(3, is_on=True)
    assert len(context.entries) >= 2 * len(complete.entries)
    for one in (context, complete):
        assert sum(entry.token_count for entry in one.entries) == one.token_count <= budget
        check_pairs(one)
    shown = {entry.seq: entry for entry in context.entries}
    for stubbed in context.stubbed:
        message = await undone(tiered, shown[stubbed.seq], stored[stubbed.seq])
        assert message == _compact(stored[stubbed.seq].body.message)
    whole = shown.keys() - {stubbed.seq for stubbed in context.stubbed}
    assert all(shown[seq].body == stored[seq].body for seq in whole)


async def test_AssembleContext__a_message_is_condensed_the_same_way_in_all_contexts(tiered: Tiered) -> None:
    steps = iter(CodingHistory())
    bodies = [body for _ in range(150) for body in next(steps)]
    await append_all(tiered, bodies)
    claim = await tiered.session.acquire(2)
    seen: dict[int, bytes] = {}
    for _ in range(20):
        step = next(steps)
        if step[0].message.role == content_pb.ROLE_USER:
            continue  # It ends the loop of calls, whose thinking is then left out.
        await tiered.session.append(step, claim=claim)
        context = await tiered.context(40_000)
        condensed = {one.seq for one in context.stubbed}
        for entry in context.entries:
            if entry.seq in condensed:
                body = entry.body.SerializeToString(deterministic=True)
                assert seen.setdefault(entry.seq, body) == body
    assert seen


async def test_DescribeFile__a_file_of_a_condensed_message_is_read_by_lines(tiered: Tiered) -> None:
    await _fill(tiered)
    context = await tiered.context(BUDGET, tail=NO_TAIL)
    [file_id] = context.stubbed[1].file_ids

    described = await tiered.describe(file_id, expand=True, lines={"first_line": 3, "line_count": 2})

    lines = CODE.splitlines(keepends=True)
    assert described.content.data.decode() == "".join(lines[2:4])
    assert (described.content.offset, described.tool_name) == (len(lines[0] + lines[1]), "write")
    assert (described.line_count, described.size_bytes) == (200, len(CODE))
    assert described.seq == context.stubbed[1].seq
    plain = await tiered.describe(file_id)
    assert (plain.sha256, plain.HasField("content")) == (described.sha256, False)
    with refused(Reason.INVALID_REQUEST):
        await tiered.describe(file_id, expand=True, lines={"first_line": 201})


async def test_DescribeFile__files_that_a_message_does_not_have_are_not_found(tiered: Tiered) -> None:
    await _fill(tiered)
    context = await tiered.context(BUDGET, tail=NO_TAIL)
    [file_id] = context.stubbed[1].file_ids
    message_id, block, _ = file_id.rsplit("_", 2)
    for wrong in (f"{message_id}_{block}", f"{message_id}_{block}_99", f"{message_id}_9", f"{message_id}_0"):
        with refused(Reason.NOT_FOUND):
            await tiered.describe(wrong, expand=True)
    with refused(Reason.NOT_FOUND):
        await tiered.describe(message_id, expand=True)
    stranger = tiered.session.service.session()
    with refused(Reason.NOT_FOUND):
        await tiered.describe(file_id, expand=True, token=stranger.client_token())


async def test_RecountTranscript__counts_condensed_messages_again(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    call = calling("c1", "write", {"content": CODE, "title": TEXT})
    call.message.content.insert(0, content_pb.ContentBlock(thinking=content_pb.Thinking(text=TEXT * 9)))
    await tiered.session.append([call, answering("c1", long_text("c", 5_000))], claim=claim)
    await tiered.session.append([user("now")])
    await tiered.session.append([assistant("end")], claim=claim)
    before = await tiered.context(BUDGET, tail=NO_TAIL)
    assert len(before.stubbed) == 2
    await tiered.session.prepare_tenant(2, stub_large_tool_payloads=True, token_vocabulary="cl100k_base")
    await recount(tiered.session)

    context = await tiered.context(BUDGET, tail=NO_TAIL, model="openai/gpt-4")

    assert [entry.body for entry in context.entries] == [entry.body for entry in before.entries]
    assert context.token_count > before.token_count
    for entry in context.entries:
        assert entry.token_count == message_token_count(entry.body.message, Vocabulary.CL100K)


def _compact(message: content_pb.Message) -> content_pb.Message:
    """Return the message with the JSON of its calls in compact form."""
    compact = content_pb.Message()
    compact.CopyFrom(message)
    for block in compact.content:
        if block.HasField("tool_call"):
            call = json.loads(block.tool_call.block_json)
            block.tool_call.block_json = json.dumps(call, separators=(",", ":"))
    return compact


async def test_TierTranscript__condenses_what_was_appended_without_the_tier(tiered: Tiered) -> None:
    await tiered.set_tier(2, is_on=False)
    await _fill(tiered)
    await tiered.set_tier(3, is_on=True)
    before = await tiered.context(5_000, tail=NO_TAIL)
    assert not before.stubbed

    assert await _tier(tiered, storage_pb.TIER_ACTION_DRY_RUN) == 4
    assert await _tier(tiered, storage_pb.TIER_ACTION_APPLY) == 4
    assert await _tier(tiered, storage_pb.TIER_ACTION_APPLY) == 0

    context = await tiered.context(BUDGET, tail=NO_TAIL)
    assert len(context.stubbed) == 4
    for one in context.stubbed:
        for file_id in one.file_ids:
            assert (await tiered.describe(file_id, expand=True)).content.data
    await _tier(tiered, storage_pb.TIER_ACTION_REVERT)
    assert await tiered.context(5_000, tail=NO_TAIL) == before


async def _tier(tiered: Tiered, action: "storage_pb.TierAction.ValueType") -> int:
    done = await tiered.run_tier(action)
    assert not done.failed_entry_count
    return done.condensed_entry_count
