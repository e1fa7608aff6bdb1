"""Contexts of tenants whose large tool results become references."""

import hashlib
import re

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, derived_id

from tests.support.transcript.bodies import assistant, note, result, superseded, text_of, user
from tests.support.transcript.tier import (
    NO_TAIL,
    Tiered,
    answering,
    calling,
    image_block,
    long_text,
)

STUB = re.compile(
    r"\[Tool output (file_[0-9a-z]{26}) \| tool=read \| 10,000 bytes\]\npath: /var/log/a\n"
    r"To read it, call transcript_describe with that file_id\."
)


def _counted(context: pb.AssembleContextResponse) -> pb.AssembleContextResponse:
    assert context.token_count == sum(entry.token_count for entry in context.entries)
    return context


async def test_AssembleContext__a_large_stale_result_is_a_reference(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    [seq] = await tiered.converse(claim, text := long_text("a"), path="/var/log/a")
    await tiered.session.append([assistant("thanks")], claim=claim)

    context = _counted(await tiered.context(tail=NO_TAIL))

    call, stub, thanks = context.entries
    found = STUB.fullmatch(text_of(stub))
    assert found, text_of(stub)
    stored = {entry.seq: entry for entry in await tiered.session.entries()}
    assert (call, thanks) == (stored[seq - 1], stored[seq + 1])
    assert text_of(stored[seq]) == text
    assert (stub.entry_id, stub.chain_hash) == (stored[seq].entry_id, stored[seq].chain_hash)
    assert stub.body.message.tool_call_id == stored[seq].body.message.tool_call_id
    assert stub.token_count < 60 < stored[seq].token_count
    assert list(context.stubbed) == [
        context_pb.StubbedResult(
            entry_id=stub.entry_id, seq=seq, file_ids=[found[1]], full_token_count=stored[seq].token_count
        )
    ]
    assert await tiered.blob(found[1]) == text.encode()


async def test_AssembleContext__references_of_attached_files_say_which_file(tiered: Tiered) -> None:
    """The directory of attachments has the name of their set, as the receipt of the spawn says."""
    claim = await tiered.session.acquire(1)
    set_id = derived_id(IdKind.ATTACHMENT_SET, tiered.session.session_id)
    paths = [f".spawnmesh/attachments/{set_id}/{name}.csv" for name in ("orders", "customers", "refunds")]
    for path in paths:
        await tiered.converse(claim, long_text(path), path=path)
    await tiered.session.append([assistant("thanks")], claim=claim)

    context = await tiered.context(tail=NO_TAIL)

    stubbed = {item.seq for item in context.stubbed}
    shown = [text_of(entry).splitlines()[1] for entry in context.entries if entry.seq in stubbed]
    assert shown == [f"path: {path}" for path in paths]


async def test_AssembleContext__a_reference_describes_the_call_that_was_made_and_not_the_requested_one(
    tiered: Tiered,
) -> None:
    claim = await tiered.session.acquire(1)
    asked = calling("c1", "read", {"path": "/etc/secret"})
    made = calling("c1", "read", {"path": "/var/log/a"}).message.content[0]
    answer = answering("c1", long_text("a"))
    answer.message.content.append(made)
    await tiered.session.append([asked, answer, assistant("thanks")], claim=claim)
    _call, stub, _thanks = (await tiered.context(tail=NO_TAIL)).entries
    assert STUB.fullmatch(stub.body.message.content[0].text.text)
    assert stub.body.message.content[1] == made


async def test_AssembleContext__a_reference_describes_the_newest_call_of_a_reused_id(
    tiered: Tiered,
) -> None:
    claim = await tiered.session.acquire(1)
    both = calling("c1", "read", {"path": "/srv/one"})
    both.message.content.append(calling("c2", "read", {"path": "/srv/old"}).message.content[0])
    await tiered.session.append([both], claim=claim)
    await tiered.session.append([calling("c2", "read", {"path": "/srv/new"})], claim=claim)
    results = [answering("c1", long_text("a")), answering("c2", long_text("b"))]
    await tiered.session.append([*results, assistant("end")], claim=claim)
    context = await tiered.context(tail=NO_TAIL)
    entries = {entry.seq: entry for entry in context.entries}
    told = [text_of(entries[stubbed.seq]).splitlines()[1] for stubbed in context.stubbed]
    assert told == ["path: /srv/one", "path: /srv/new"]


async def test_AssembleContext__fresh_results_are_complete(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"), long_text("b"))
    assert [text_of(entry)[:2] for entry in (await tiered.context()).entries] == ["", "a0", "", "b0"]
    context = await tiered.context(tail=NO_TAIL)
    assert [text_of(entry)[:2] for entry in context.entries] == ["", "[T", "", "b0"], "not answered yet"


async def test_AssembleContext__small_results_users_and_answers_are_never_references(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    text = long_text("u", 20_000)
    await tiered.session.append([user(text), note(text)])
    await tiered.session.append([assistant(text, "c1"), result("c1", long_text("s", 7_999))], claim=claim)
    await tiered.session.append([assistant("done")], claim=claim)
    context = _counted(await tiered.context(tail=NO_TAIL))
    assert list(context.entries) == (await tiered.session.entries())[1:]
    assert not context.stubbed


async def test_AssembleContext__a_result_of_several_blocks_keeps_its_shape(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    image = hashlib.shake_128(b"image").digest(9_000)
    body = answering("c1", long_text("a", 7_000), "short", long_text("b", 3_000))
    body.message.content.append(image_block(image))
    body.message.is_error = True
    await tiered.session.append([calling("c1", "look", {}), body, assistant("seen")], claim=claim)

    context = _counted(await tiered.context(tail=NO_TAIL))

    stub = context.entries[1].body.message
    texts = [block.text.text for block in stub.content]
    assert [text.split(" | ")[-1].split("\n")[0] for text in texts] == [
        "7,000 bytes]",
        "short",
        "3,000 bytes]",
        "9,000 bytes]",
    ]
    assert (stub.is_error, stub.tool_call_id, stub.role) == (True, "c1", content_pb.ROLE_TOOL_RESULT)
    [stubbed] = context.stubbed
    assert [len(await tiered.blob(file_id)) for file_id in stubbed.file_ids] == [7_000, 3_000, 9_000]
    described = await tiered.describe(stubbed.file_ids[2], expand=True, bytes={"length": 9_000})
    assert (described.mime_type, described.content.data) == ("image/png", image)


async def test_AssembleContext__more_fits_the_same_budget_and_the_budget_holds(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    await tiered.converse(claim, *(long_text(f"w{number}x") for number in range(30)))
    await tiered.set_tier(2, is_on=False)
    whole = _counted(await tiered.context(20_000, tail=NO_TAIL))
    await tiered.set_tier(3, is_on=True)
    assert len(_counted(await tiered.context(20_000, tail=NO_TAIL)).entries) > 2 * len(whole.entries)

    for budget in (7_000, 6_500, 6_000, 5_600):
        context = _counted(await tiered.context(budget, tail=NO_TAIL))
        assert context.token_count <= budget
        assert context.dropped_entry_count == 61 - len(context.entries) > 0
        assert list(context.dropped) == [
            context_pb.DroppedEntries(
                first_seq=1,
                last_seq=context.entries[1].seq - 1,
                entry_count=context.dropped_entry_count,
                cause=context_pb.DROP_CAUSE_BUDGET,
            )
        ]


async def test_AssembleContext__accompanying_texts_reduce_the_budget(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.session.append([assistant("word " * 1_000) for _ in range(10)], claim=claim)
    text = "schema " * 2_000
    context = await tiered.context(6_000, accompanying_texts=[text, text], reserved_token_count=500)
    assert context.accompanying_token_count == 2 * 2_001
    assert context.token_count + context.accompanying_token_count + 500 <= 6_000
    assert len(context.entries) == 1
    assert len((await tiered.context(4_001, accompanying_texts=[text, text])).entries) == 0


async def test_AssembleContext__reports_what_it_left_out(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    drafts = await tiered.session.append([assistant("draft"), assistant("draft")], claim=claim)
    await tiered.session.append([superseded(entry.entry_id) for entry in drafts.entries], claim=claim)
    await tiered.session.append([result("nothing", "r"), assistant("end")], claim=claim)
    context = await tiered.context()
    assert [text_of(entry) for entry in context.entries] == ["task", "end"]
    assert list(context.dropped) == [
        context_pb.DroppedEntries(
            first_seq=3, last_seq=4, entry_count=2, cause=context_pb.DROP_CAUSE_SUPERSEDED
        ),
        context_pb.DroppedEntries(
            first_seq=7, last_seq=7, entry_count=1, cause=context_pb.DROP_CAUSE_UNMATCHED
        ),
    ]


async def test_AssembleContext__with_the_tier_off_bodies_are_those_stored(tiered: Tiered) -> None:
    """The transcript has references, and requests name every kind of tail: the answer has
    nothing of the tier."""
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    await tiered.converse(claim, *(long_text(f"w{number}x") for number in range(12)))
    assert (await tiered.context(tail=NO_TAIL)).stubbed
    await tiered.set_tier(2, is_on=False)
    stored = (await tiered.session.entries())[1:]

    for budget in (200_000, 20_000):
        fitting = [*stored]
        while sum(entry.token_count for entry in fitting) > budget:
            del fitting[1:3]  # A call and its result; the user's message stays.
        expected = pb.AssembleContextResponse(
            entries=fitting,
            token_count=sum(entry.token_count for entry in fitting),
            dropped_entry_count=len(stored) - len(fitting),
            token_vocabulary="o200k_base",
            fresh_seq=stored[-1].seq - 1,  # The newest answer, and the message that it answers.
        )
        off = await tiered.context(budget, tail=NO_TAIL)
        assert off.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


async def test_AssembleContext__the_tier_is_switched_on_and_off_on_a_live_transcript(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a"), long_text("b"))
    await tiered.set_tier(2, is_on=False)
    await tiered.converse(await tiered.session.acquire(2), long_text("c"))
    await tiered.set_tier(3, is_on=True)
    claim = await tiered.session.acquire(3)
    await tiered.converse(claim, long_text("d"))
    await tiered.session.append([assistant("end")], claim=claim)

    def shown(context: pb.AssembleContextResponse) -> list[str]:
        return [text_of(entry)[:1] for entry in context.entries[1::2]]

    on = await tiered.context(tail=NO_TAIL)
    assert shown(on) == ["[", "[", "c", "["], "what was appended while it was off is whole"
    await tiered.set_tier(4, is_on=False)
    assert shown(await tiered.context(tail=NO_TAIL)) == ["a", "b", "c", "d"]
    await tiered.set_tier(5, is_on=True)
    assert await tiered.context(tail=NO_TAIL) == on


async def test_AssembleContext__the_tenant_sets_what_is_large(tiered: Tiered) -> None:
    await tiered.set_tier(2, is_on=True, large_payload_bytes=500)
    claim = await tiered.session.acquire(1)
    await tiered.converse(claim, long_text("a", 499), long_text("b", 500))
    await tiered.session.append([assistant("end")], claim=claim)
    assert [text_of(entry)[:1] for entry in (await tiered.context(tail=NO_TAIL)).entries[1::2]] == ["a", "["]


async def test_AssembleContext__successive_contexts_begin_with_the_same_bytes(
    tiered: Tiered,
) -> None:
    """Results become stale four messages at a time; in between, a context only grows."""
    claim = await tiered.session.acquire(1)
    await tiered.session.append([user("task")])
    tail = context_pb.FreshTail(message_count=16, token_count=1_000_000)
    earlier: list[bytes] = []
    changed = []
    for number in range(40):
        await tiered.converse(claim, long_text(f"w{number}x"))
        context = await tiered.context(tail=tail)
        entries = [entry.SerializeToString(deterministic=True) for entry in context.entries]
        changed.append(entries[: len(earlier)] != earlier)
        earlier = entries
        fresh_count = len(entries) - max([one.seq for one in context.stubbed], default=1) + 1
        assert fresh_count >= min(16, len(entries))
        assert fresh_count < 16 + 4 + 2
    assert sum(changed) == (81 - 16) // 4
