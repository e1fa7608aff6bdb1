"""Creating, forking and deleting a transcript, and its writer claim."""

import asyncio

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, note, result, superseded, text_of, user
from tests.support.transcript.fixtures import Service, Session, refused


async def test_CreateTranscript__writes_the_header(service: Service) -> None:
    fresh = service.session()
    head = await fresh.create()
    (header,) = await fresh.entries()
    assert header.body.header.session_id == fresh.session_id
    assert header.body.header.incarnation == head.incarnation
    assert (header.seq, header.parent_entry_id, header.token_count) == (1, "", 0)
    assert header.writer.service == "session"
    assert (head.seq, head.chain_hash) == (1, header.chain_hash)
    assert (head.writer_run_id, head.writer_epoch) == ("", 0)


async def test_CreateTranscript__a_repeat_answers_with_the_head(service: Service) -> None:
    fresh = service.session()
    heads = await asyncio.gather(*(fresh.create() for _ in range(5)))
    assert len({head.incarnation for head in heads}) == 1
    await fresh.append([user("hi")])
    assert (await fresh.create()).seq == 2
    assert len(await fresh.entries()) == 2


async def test_CreateTranscript__another_origin_is_refused(session: Session) -> None:
    child = session.sibling()
    await child.create(fork_of=session)
    with refused(Reason.ALREADY_EXISTS):
        await child.create()
    with refused(Reason.ALREADY_EXISTS):
        await session.create(fork_of=child)


async def test_CreateTranscript__a_fork_of_an_unknown_session_leaves_nothing(service: Service) -> None:
    child = service.session()
    with refused(Reason.NOT_FOUND):
        await child.create(fork_of=child.sibling())
    with refused(Reason.INVALID_REQUEST):
        await child.create(fork_of=child)
    with refused(Reason.NOT_FOUND):
        await child.entries()


async def test_CreateTranscript__a_fork_copies_messages_with_their_results(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("question"), note("files")])
    draft = await session.append([assistant("draft")], claim=claim)
    await session.append([superseded(draft.entries[0].entry_id)], claim=claim)
    await session.append(
        [assistant("working", "c1", "c2"), result("c2", "two"), result("c9", "orphan")], claim=claim
    )
    child = session.sibling()
    head = await child.create(fork_of=session)
    entries = await child.entries()
    assert entries[0].body.header.forked_from_session_id == session.session_id
    assert [text_of(entry) for entry in entries[1:2]] == ["question"]
    assert [(entry.body.message.role, entry.body.message.tool_call_id) for entry in entries[2:]] == [
        (content_pb.ROLE_ASSISTANT, ""),
        (content_pb.ROLE_TOOL_RESULT, "c1"),
        (content_pb.ROLE_TOOL_RESULT, "c2"),
    ]
    assert entries[3].body.message.is_error
    assert [entry.seq for entry in entries] == list(range(1, head.seq + 1))
    originals = {entry.entry_id for entry in await session.entries()}
    assert not originals & {entry.entry_id for entry in entries}
    context = await child.context()
    assert context.synthetic_result_count == 0
    assert context.token_count == sum(entry.token_count for entry in entries)


async def test_CreateTranscript__a_fork_keeps_its_token_cap(session: Session) -> None:
    await session.append([user("word " * 50), user("word " * 50), user("word " * 200)])
    counts = [entry.token_count for entry in await session.entries()]
    nothing, one, two = (session.sibling() for _ in range(3))
    await nothing.create(fork_of=session, max_token_count=counts[3] - 1)
    await one.create(fork_of=session, max_token_count=counts[3])
    await two.create(fork_of=session, max_token_count=counts[3] + counts[2])
    assert [len(await child.entries()) for child in (nothing, one, two)] == [1, 2, 3]


async def test_AcquireWriter__a_higher_epoch_takes_over_and_a_lower_one_is_refused(session: Session) -> None:
    old = await session.acquire(3)
    assert (await session.acquire_claim(old)).writer_epoch == 3
    new = await session.acquire(4)
    head = await session.acquire_claim(new)
    assert (head.writer_run_id, head.writer_epoch) == (new.run_id, 4)
    for late in (
        old,
        pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=4),
        pb.WriterClaim(run_id=new.run_id, epoch=2),
    ):
        with refused(Reason.WRITER_CLAIM_LOST) as facts:
            await session.acquire_claim(late)
        assert (facts["seq"], facts["writer_run_id"], facts["writer_epoch"]) == ("1", new.run_id, "4")


async def test_AcquireWriter__racing_claims_leave_the_highest(session: Session) -> None:
    claims = [pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=epoch) for epoch in range(1, 13)]
    await asyncio.gather(*(session.acquire_claim(claim) for claim in claims), return_exceptions=True)
    assert (await session.page()).head.writer_epoch == 12


async def test_AcquireWriter__the_facts_of_a_refusal_suffice_for_one_retry(session: Session) -> None:
    await session.acquire(41)
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await session.acquire(7)
    claim = await session.acquire(int(facts["writer_epoch"]) + 1)
    await session.append([assistant("mine")], claim=claim)
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await session.append([assistant("late")], claim=pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=3))
    head = (await session.page()).head
    assert facts == {
        "incarnation": head.incarnation,
        "seq": "2",
        "chain_hash": head.chain_hash,
        "writer_run_id": claim.run_id,
        "writer_epoch": "42",
    }


async def test_ReleaseWriter__ends_the_claim_for_good(session: Session) -> None:
    claim = await session.acquire(3)
    await session.append([assistant("kept")], claim=claim, key="k")
    for _ in range(2):
        head = await session.release(claim)
        assert (head.writer_run_id, head.writer_epoch, head.seq) == ("", 3, 2)
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await session.append([assistant("late")], claim=claim)
    assert (facts["writer_run_id"], facts["writer_epoch"]) == ("", "3")
    for gone in (claim, pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=3)):
        with refused(Reason.WRITER_CLAIM_LOST):
            await session.acquire_claim(gone)
    assert (await session.append([assistant("kept")], claim=claim, key="k")).replayed
    again = await session.acquire(4, run_id=claim.run_id)
    await session.append([assistant("next")], claim=again)


async def test_ReleaseWriter__a_claim_released_before_it_was_acquired_is_never_acquired(
    session: Session,
) -> None:
    earlier = await session.acquire(1)
    claim = pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=3)
    for _ in range(2):
        head = await session.release(claim)
        assert (head.writer_run_id, head.writer_epoch) == ("", 3)
    for gone in (earlier, claim, pb.WriterClaim(run_id=claim.run_id, epoch=2)):
        with refused(Reason.WRITER_CLAIM_LOST) as facts:
            await session.acquire_claim(gone)
        assert (facts["writer_run_id"], facts["writer_epoch"]) == ("", "3")
        with refused(Reason.WRITER_CLAIM_LOST):
            await session.append([assistant("late")], claim=gone)
        with refused(Reason.WRITER_CLAIM_LOST):
            await session.open_window(gone)
    await session.append([assistant("next")], claim=await session.acquire(4))


async def test_ReleaseWriter__a_higher_claim_stays_in_force(session: Session) -> None:
    old = await session.acquire(1)
    new = await session.acquire(2)
    for other in (
        old,
        pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=2),
        pb.WriterClaim(run_id=new.run_id, epoch=1),
    ):
        assert (await session.release(other)).writer_run_id == new.run_id
    await session.append([assistant("still mine")], claim=new)
    with refused(Reason.NOT_FOUND):
        await session.sibling().release(new)


async def test_AcquireWriter__unknown_session(service: Service) -> None:
    with refused(Reason.NOT_FOUND):
        await service.session().acquire(1)


async def test_AcquireWriter__a_service_may_claim_for_a_run(session: Session) -> None:
    claim = await session.acquire(1, token=session.service_token())
    assert (await session.page()).head.writer_run_id == claim.run_id


@pytest.mark.parametrize("epoch", [1, 3])
async def test_AcquireWriter__a_run_claims_only_for_itself(session: Session, epoch: int) -> None:
    own = pb.WriterClaim(run_id=new_id(IdKind.RUN), epoch=2)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.acquire(epoch, run_id=own.run_id, token=session.run_token(own))
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.acquire(2, token=session.run_token(own))


async def test_callers_without_permission_are_refused(service: Service, session: Session) -> None:
    foreign = service.hook_minter.service_token(session.tenant_id)
    claim = await session.acquire(1)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.append([user("hi")], token=foreign)
    with refused(Reason.UNOWNED_APPEND_NOT_ALLOWED):
        await session.append([user("hi")], token=session.client_token())
    for token in (session.client_token(), session.mirror_token()):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await session.append([assistant("hi")], claim=claim, token=token)
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.acquire_claim(claim, token=session.client_token())
    with refused(Reason.CALLER_NOT_ALLOWED):
        await session.context(token=session.service_token())
