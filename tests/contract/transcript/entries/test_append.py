"""AppendEntries and ListEntries: all or nothing, dense, fenced and repeatable."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import (
    assistant,
    bash,
    call_block,
    note,
    result,
    superseded,
    text_block,
    text_of,
    user,
)
from tests.support.transcript.chains import check_chain
from tests.support.transcript.fixtures import Service, Session, refused


def _check_chain(entries: list[entry_pb2.Entry]) -> None:
    check_chain(entries)
    parent = ""
    for seq, entry in enumerate(entries, start=1):
        assert (entry.seq, entry.parent_entry_id) == (seq, parent)
        parent = entry.entry_id


@contextmanager
def _until_the_claim_is_lost() -> Iterator[None]:
    try:
        yield
    except MeshError as error:
        if error.reason is not Reason.WRITER_CLAIM_LOST:
            raise


async def test_AppendEntries__answers_with_the_position_of_each_entry(session: Session) -> None:
    claim = await session.acquire(1)
    answer = await session.append([assistant("one", "c"), result("c", "two")], claim=claim)
    entries = await session.entries()
    assert [(entry.entry_id, entry.seq) for entry in answer.entries] == [
        (entry.entry_id, entry.seq) for entry in entries[1:]
    ]
    assert (answer.head.seq, answer.head.chain_hash) == (3, entries[-1].chain_hash)
    assert (answer.head.writer_run_id, answer.head.writer_epoch) == (claim.run_id, 1)
    assert not answer.replayed
    assert entries[1].body == assistant("one", "c")
    assert entries[1].writer == entry_pb2.Writer(run_id=claim.run_id, epoch=1)
    assert entries[1].create_time.seconds > 0
    _check_chain(entries)


async def test_AppendEntries__unknown_session(service: Service) -> None:
    with refused(Reason.NOT_FOUND):
        await service.session().append([user("hi")])


async def test_AppendEntries__same_key_same_entries_is_replayed_for_every_writer(session: Session) -> None:
    old = await session.acquire(1)
    first = await session.append([assistant("a"), assistant("b")], claim=old, key="k")
    new = await session.acquire(2)
    await session.append([assistant("c")], claim=new)
    for claim in (old, new):
        again = await session.append([assistant("a"), assistant("b")], claim=claim, key="k")
        assert again.replayed
        assert again.entries == first.entries
        assert again.head == first.head
    assert (await session.page()).head.seq == 4


async def test_AppendEntries__same_key_other_entries_is_refused(session: Session) -> None:
    await session.append([user("a")], key="k")
    for other in ([user("b")], [user("a"), user("a")], [note("a")]):
        with refused(Reason.REQUEST_ID_REUSED):
            await session.append(other, key="k")
    assert (await session.page()).head.seq == 2


async def test_AppendEntries__keys_belong_to_one_session(session: Session) -> None:
    other = session.sibling()
    await other.create()
    assert not (await session.append([user("a")], key="k")).replayed
    assert not (await other.append([user("b")], key="k")).replayed


async def test_AppendEntries__twenty_calls_with_one_key_append_once(session: Session) -> None:
    claim = await session.acquire(1)
    answers = await asyncio.gather(
        *(session.append([assistant("a"), assistant("b")], claim=claim, key="k") for _ in range(20))
    )
    assert Counter(answer.replayed for answer in answers) == {True: 19, False: 1}
    assert len({answer.entries[0].entry_id for answer in answers}) == 1
    assert all(answer.head == answers[0].head for answer in answers)
    assert len(await session.entries()) == 3


async def test_AppendEntries__eight_appenders_lose_nothing(session: Session) -> None:
    claim = await session.acquire(1)

    async def append_many(appender: int) -> list[str]:
        ids = []
        for number in range(10):
            answer = await session.append(
                [assistant(f"{appender}/{number}/{part}") for part in range(2)], claim=claim
            )
            ids += [entry.entry_id for entry in answer.entries]
            assert answer.entries[1].seq == answer.entries[0].seq + 1
        return ids

    told = [entry_id for ids in await asyncio.gather(*map(append_many, range(8))) for entry_id in ids]
    entries = await session.entries()
    _check_chain(entries)
    assert {entry.entry_id for entry in entries[1:]} == set(told)
    assert len(told) == 160
    assert len({text_of(entry) for entry in entries[1:]}) == 160


async def test_AppendEntries__a_takeover_refuses_the_old_writer_at_once(session: Session) -> None:
    old = await session.acquire(1)
    await session.append([assistant("mine")], claim=old)
    new = await session.acquire(2)
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await session.append([assistant("late")], claim=old)
    assert (facts["seq"], facts["writer_run_id"], facts["writer_epoch"]) == ("2", new.run_id, "2")
    await session.append([assistant("theirs")], claim=new)
    assert [text_of(entry) for entry in (await session.entries())[1:]] == ["mine", "theirs"]


async def test_AppendEntries__a_takeover_in_the_middle_of_appends_leaves_no_late_entry(
    session: Session,
) -> None:
    claims = [pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=epoch) for epoch in range(1, 6)]

    async def write(claim: pb.WriterClaim) -> int:
        accepted = 0
        with _until_the_claim_is_lost():
            await session.acquire_claim(claim)
            for number in range(20):
                await session.append([assistant(str(number))], claim=claim)
                accepted += 1
        return accepted

    accepted = await asyncio.gather(*map(write, claims))
    entries = await session.entries()
    _check_chain(entries)
    epochs = [entry.writer.epoch for entry in entries[1:]]
    assert epochs == sorted(epochs)
    assert Counter(epochs) == {
        claim.epoch: count for claim, count in zip(claims, accepted, strict=True) if count
    }
    assert accepted[-1] == 20


async def test_AppendEntries__a_claim_that_was_never_acquired_is_lost(session: Session) -> None:
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await session.append([assistant("a")], claim=pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=1))
    assert facts["writer_run_id"] == ""


async def test_AppendEntries__an_older_epoch_of_the_same_run_is_lost(session: Session) -> None:
    old = await session.acquire(1)
    await session.acquire(2, run_id=old.run_id)
    with refused(Reason.WRITER_CLAIM_LOST):
        await session.append([assistant("late")], claim=old)


async def test_AppendEntries__a_run_comes_with_its_own_claim(session: Session) -> None:
    claim = await session.acquire(1)
    other = pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=9)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.append([assistant("a")], claim=claim, token=session.run_token(other))
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await session.append([user("a")], token=session.run_token(claim))


async def test_AppendEntries__a_service_writes_on_behalf_of_a_run(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([assistant("final")], claim=claim, token=session.service_token())
    (entry,) = await session.entries(after_seq=1)
    assert entry.writer == entry_pb2.Writer(run_id=claim.run_id, epoch=1, service="session")


@pytest.mark.parametrize(
    "entry",
    [assistant("a"), result("c", "r"), superseded("ent_" + "0" * 26)],
    ids=["assistant", "result", "label"],
)
async def test_AppendEntries__unowned_is_for_user_messages_and_notes(
    session: Session, entry: entry_pb2.EntryBody
) -> None:
    answer = await session.append([user("hi"), note("files")])
    assert len(answer.entries) == 2
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await session.append([user("hi"), entry])
    entries = await session.entries(after_seq=1)
    assert [entry.writer for entry in entries] == [entry_pb2.Writer(service="session")] * 2


async def test_AppendEntries__a_label_marks_an_entry_of_the_same_transcript(session: Session) -> None:
    claim = await session.acquire(1)
    other = session.sibling()
    await other.create()
    foreign = (await other.append([user("hi")])).entries[0].entry_id
    for missing in (foreign, new_id(IdKind.ENTRY)):
        with refused(Reason.NOT_FOUND):
            await session.append([assistant("kept out"), superseded(missing)], claim=claim)
    assert (await session.page()).head.seq == 1
    draft = await session.append([assistant("draft")], claim=claim)
    await session.append([superseded(draft.entries[0].entry_id)], claim=claim)
    assert (await session.entries())[-1].body.label.entry_id == draft.entries[0].entry_id


_BAD_ENTRIES = {
    "header": entry_pb2.EntryBody(header=entry_pb2.Header(session_id="ses_x")),
    "nothing": entry_pb2.EntryBody(),
    "empty block": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_USER, content=[content_pb.ContentBlock()])
    ),
    "no json": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block("c", "{nope")])
    ),
    "a list": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block("c", "[1]")])
    ),
    "blank call id": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block(" ", "{}")])
    ),
    "blank name": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block("c", "{}", " ")])
    ),
    "nul in call id": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call_block("c\0", "{}")])
    ),
    "result of nothing": result("", "r"),
    "nul in answered id": result("c\0", "r"),
    "command without its role": entry_pb2.EntryBody(
        message=content_pb.Message(
            role=content_pb.ROLE_USER, bash_execution=content_pb.BashExecution(command="ls", exit_code=0)
        )
    ),
    "role without its command": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_BASH_EXECUTION)
    ),
    "empty command": bash(""),
    "custom without a type": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_CUSTOM, custom_type=" ")
    ),
    "type without custom": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_USER, custom_type="todo")
    ),
    "change to nothing": entry_pb2.EntryBody(model_change=entry_pb2.ModelChange(model=" ")),
    "empty compaction": entry_pb2.EntryBody(compaction=entry_pb2.Compaction()),
    "compaction of a malformed id": entry_pb2.EntryBody(
        compaction=entry_pb2.Compaction(summary="s", first_kept_entry_id="ent_1")
    ),
    "empty branch summary": entry_pb2.EntryBody(branch_summary=entry_pb2.BranchSummary()),
    "custom entry without a type": entry_pb2.EntryBody(custom=entry_pb2.Custom(data_json="{}")),
    "custom entry that is no json": entry_pb2.EntryBody(
        custom=entry_pb2.Custom(custom_type="t", data_json="{")
    ),
    "opaque that is no object": entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="t", entry_json="[1]")),
    "opaque that is no json": entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="t", entry_json="{nope")),
    "opaque without a type": entry_pb2.EntryBody(opaque=entry_pb2.Opaque(entry_json="{}")),
    "a line of a file": entry_pb2.EntryBody(
        message=content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[text_block("x")]),
        source=entry_pb2.Source(line="{}"),
    ),
    "no role": entry_pb2.EntryBody(message=content_pb.Message(content=[text_block("x")])),
}


@pytest.mark.parametrize("name", list(_BAD_ENTRIES))
async def test_AppendEntries__malformed_entries_are_refused_and_nothing_is_stored(
    session: Session, name: str
) -> None:
    claim = await session.acquire(1)
    with refused(Reason.INVALID_REQUEST):
        await session.append([assistant("fine"), _BAD_ENTRIES[name]], claim=claim)
    assert (await session.page()).head.seq == 1


async def test_AppendEntries__text_that_the_database_cannot_hold_in_a_column_is_kept_in_bodies(
    session: Session,
) -> None:
    await session.append([user("a\0b"), note("c\0d")])
    assert [text_of(entry) for entry in await session.entries(after_seq=1)] == ["a\0b", "c\0d"]
    with refused(Reason.INVALID_REQUEST):
        await session.append([user("x")], key="k\0")


async def test_AppendEntries__counts_what_a_model_reads(session: Session) -> None:
    claim = await session.acquire(1)
    thinking = content_pb.ContentBlock(thinking=content_pb.Thinking(text="hello world", signature="s" * 1000))
    image = content_pb.ContentBlock(image=content_pb.Image(mime_type="image/png", data=bytes(10_000)))
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT,
        content=[text_block("hello world"), thinking, call_block("c", '{"a":1}'), image],
    )
    await session.append([entry_pb2.EntryBody(message=message), note("hello world")], claim=claim)
    said, noted = await session.entries(after_seq=1)
    assert said.token_count == 2 + 2 + 5 + 1600
    assert noted.token_count == 2


async def test_AppendEntries__a_huge_text_does_not_delay_others(session: Session) -> None:
    other = session.sibling()
    await other.create()
    huge = asyncio.create_task(session.append([user("word and more " * 500_000)]))
    quick = 0
    while not huge.done():
        await other.page()
        quick += 1
    assert (await huge).head.seq == 2
    assert quick >= 5
    assert (await session.entries(after_seq=1))[0].token_count == pytest.approx(1_500_000, rel=0.01)


_KINDS = {
    "user": user("u"),
    "assistant": assistant("a"),
    "call": assistant("c", "x"),
    "result": result("x", "r"),
    "note": note("n"),
}
_BATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(sorted(_KINDS)), min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
)


async def _append_batches(fresh: Session, batches: list[tuple[int, list[str]]]) -> None:
    """Append each batch under the key of its number, and check the answers against a model."""
    await fresh.create()
    claim = await fresh.acquire(1)
    stored: list[str] = []
    of_key: dict[int, tuple[list[str], list[int]]] = {}
    for key, kinds in batches:
        known, seqs = of_key.get(key, (kinds, list(range(len(stored) + 2, len(stored) + 2 + len(kinds)))))
        if known != kinds:
            with refused(Reason.REQUEST_ID_REUSED):
                await fresh.append([_KINDS[kind] for kind in kinds], claim=claim, key=str(key))
            continue
        answer = await fresh.append([_KINDS[kind] for kind in kinds], claim=claim, key=str(key))
        assert answer.replayed == (key in of_key)
        assert [entry.seq for entry in answer.entries] == seqs
        if not answer.replayed:
            stored += kinds
        of_key[key] = (kinds, seqs)
    entries = await fresh.entries()
    _check_chain(entries)
    assert [entry.body for entry in entries[1:]] == [_KINDS[kind] for kind in stored]


async def test_AppendEntries__any_sequence_of_appends_is_dense_chained_and_applied_once(
    service: Service,
) -> None:
    loop = asyncio.get_running_loop()

    @settings(max_examples=25, deadline=None, database=None)
    @given(_BATCHES)
    def holds(batches: list[tuple[int, list[str]]]) -> None:
        asyncio.run_coroutine_threadsafe(_append_batches(service.session(), batches), loop).result()

    await asyncio.to_thread(holds)
