"""Appends that close a prompt window or release the claim, and windows that are opened with a
context."""

import asyncio

import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres

from tests.support.transcript.bodies import assistant, result, text_of, user
from tests.support.transcript.drafts import write_draft
from tests.support.transcript.fixtures import Session, refused, waits_for
from tests.support.transcript.forgery import Forger
from tests.support.transcript.tables import Superuser
from tests.support.transcript.window_cases import FENCE, HOLD, OTHER_RUN, TRIP, World
from tests.support.waiting import eventually

BUDGET = 1000


@pytest.fixture
async def world(session: Session, superuser: Superuser) -> World:
    task = await session.append([user("task")])
    claim = await session.acquire(1)
    await session.append([assistant("working", "c")], claim=claim)
    return World(session, claim, task.entries[0].entry_id, Forger(superuser, session))


def context_of(session: Session, **fields: int) -> pb.AssembleContextRequest:
    return pb.AssembleContextRequest(session_id=session.session_id, token_budget=BUDGET, **fields)


@pytest.mark.parametrize("name", list(HOLD))
async def test_AppendEntries__a_fence_holds_over(world: World, name: str) -> None:
    fence = await world.session.open_window(world.claim)
    assert fence.seq == FENCE
    await HOLD[name](world)
    before = (await world.session.page()).head
    appended = await world.session.append([assistant("answer")], claim=world.claim, fence=fence)
    assert [one.seq for one in appended.entries] == [before.seq + 1]
    assert appended.head.seq == before.seq + 1
    assert appended.head.writer_run_id == world.claim.run_id


@pytest.mark.parametrize("name", list(TRIP))
async def test_AppendEntries__a_fence_is_broken_by(world: World, name: str) -> None:
    meanwhile, seq, kind, cause = TRIP[name]
    fence = await world.session.open_window(world.claim)
    await meanwhile(world)
    before = (await world.session.page(page_size=1)).head
    for _ in range(2):
        with refused(Reason.SESSION_TAKEOVER) as facts:
            await world.session.append([assistant("answer")], claim=world.claim, fence=fence, key="answer")
        assert (facts["offending_seq"], facts["offending_kind"], facts["cause"]) == (str(seq), kind, cause)
    assert (await world.session.page(page_size=1)).head == before


async def test_AppendEntries__a_fence_of_a_lost_claim_appends_nothing(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.other()
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await world.session.append([assistant("answer")], claim=world.claim, fence=fence)
    assert (facts["writer_run_id"], facts["seq"]) == (OTHER_RUN, str(FENCE))


async def test_AppendEntries__a_repeat_with_its_fence_returns_the_first_answer(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    answer = [assistant("answer")]
    first = await world.session.append(answer, claim=world.claim, fence=fence, key="answer")
    await world.people(user("more"))
    await world.other(assistant("theirs"))
    again = await world.session.append(answer, claim=world.claim, fence=fence, key="answer")
    assert (again.replayed, again.entries, again.head) == (True, first.entries, first.head)
    with refused(Reason.REQUEST_ID_REUSED):
        await world.session.append([assistant("x")], claim=world.claim, fence=fence, key="answer")


async def test_AppendEntries__nothing_comes_between_the_fence_and_the_answer(world: World) -> None:
    """People write while windows are closed: an answer never follows what its model did not read."""
    held = broken = 0
    for number in range(40):
        fence = await world.session.open_window(world.claim)
        appending = world.session.append([assistant(f"answer {number}")], claim=world.claim, fence=fence)
        said, _ = await asyncio.gather(
            appending, world.people(user(f"news {number}")), return_exceptions=True
        )
        texts = [text_of(entry) for entry in await world.session.entries(after_seq=fence.seq)]
        if isinstance(said, pb.AppendEntriesResponse):
            held += 1
            assert texts == [f"answer {number}", f"news {number}"]
        else:
            broken += 1
            assert texts == [f"news {number}"]
    assert held + broken == 40


async def test_AppendEntries__several_answers_close_the_same_window_in_turn(world: World) -> None:
    """The own entries of others at the same time move the head, and break no window."""
    fence = await world.session.open_window(world.claim)
    await asyncio.gather(
        *(
            world.session.append([result("c", str(number))], claim=world.claim, fence=fence)
            for number in range(3)
        )
    )
    assert len(await world.session.entries(after_seq=fence.seq)) == 3


async def test_AppendEntries__only_a_claim_has_a_window_and_a_release(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    with refused(Reason.INVALID_REQUEST):
        await world.session.append([user("u")], fence=fence)
    with refused(Reason.INVALID_REQUEST):
        await world.session.append([user("u")], release_writer=True)


async def test_AppendEntries__a_release_ends_the_claim_with_the_entries(world: World) -> None:
    draft = await write_draft(world.session, world.claim, "Half an ans", after_seq=FENCE)
    assert draft.end_offset
    appended = await world.session.append([assistant("last")], claim=world.claim, release_writer=True)
    head = (await world.session.page()).head
    assert appended.head == head
    assert (head.seq, head.writer_run_id, head.writer_epoch) == (FENCE + 1, "", 1)
    left = await world.forger.execute(
        "select count(*) from draft_pieces where tenant_id = %(tenant)s and session_id = %(session)s"
    )
    assert left == [(0,)]
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.own(assistant("a"))
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.session.acquire_claim(world.claim)
    await world.other(assistant("theirs"))


async def test_AppendEntries__a_refused_append_releases_nothing(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.people(user("news"))
    with refused(Reason.SESSION_TAKEOVER):
        await world.session.append([assistant("a")], claim=world.claim, fence=fence, release_writer=True)
    await world.own(assistant("still mine"))


async def test_AppendEntries__a_repeat_releases_nothing(world: World) -> None:
    last = [assistant("last")]
    await world.session.append(last, claim=world.claim, key="last", release_writer=True)
    other = await world.session.acquire(2, run_id=OTHER_RUN)
    again = await world.session.append(last, claim=other, key="last", release_writer=True)
    assert again.replayed
    await world.session.append([assistant("theirs")], claim=other)


async def test_OpenWindow__returns_the_context_at_its_fence(world: World) -> None:
    higher = pb.WriterClaim(run_id=OTHER_RUN, epoch=2)
    opened = await world.session.open_with_context(higher, context_of(world.session))
    assert opened.fence.seq == FENCE
    assert [entry.seq for entry in opened.context.entries] == [2, 3, 0], "the last one is synthetic"
    again = await world.session.open_with_context(higher, context_of(world.session))
    assert again == opened
    await world.session.append([assistant("answer")], claim=higher, fence=opened.fence)


async def test_OpenWindow__the_fence_and_the_context_are_of_one_snapshot(world: World) -> None:
    for number in range(20):
        opened, _ = await asyncio.gather(
            world.session.open_with_context(world.claim, context_of(world.session)),
            world.people(user(f"news {number}")),
        )
        assert max(entry.seq for entry in opened.context.entries) == opened.fence.seq


async def test_OpenWindow__a_higher_claim_waits_for_an_append_and_reads_it(
    world: World, superuser: Superuser, postgres: Postgres
) -> None:
    """The transaction that made the claim in an older snapshot cannot go on."""
    higher = pb.WriterClaim(run_id=OTHER_RUN, epoch=2)
    dsn = make_conninfo(postgres.superuser_dsn, dbname="spawnmesh", options="-c search_path=transcript")
    async with await AsyncConnection.connect(dsn) as holder:
        await holder.execute(
            "update transcripts set token_count = token_count + 1 where session_id = %s",
            (world.session.session_id,),
        )
        opening = asyncio.create_task(world.session.open_with_context(higher, context_of(world.session)))
        await eventually(lambda: waits_for(superuser, holder))
        await holder.commit()
        opened = await opening
    assert opened.fence.seq == FENCE
    head = (await world.session.page()).head
    assert (head.writer_run_id, head.writer_epoch) == (OTHER_RUN, 2)


async def test_OpenWindow__a_context_is_of_its_session_and_of_now(world: World) -> None:
    sibling = world.session.sibling()
    await sibling.create()
    with refused(Reason.INVALID_REQUEST):
        await world.session.open_with_context(world.claim, context_of(sibling))
    with refused(Reason.INVALID_REQUEST):
        await world.session.open_with_context(world.claim, context_of(world.session, up_to_seq=2))


async def test_OpenWindow__a_refused_context_acquires_nothing(world: World) -> None:
    higher = pb.WriterClaim(run_id=OTHER_RUN, epoch=2)
    with refused(Reason.INVALID_REQUEST):
        await world.session.open_with_context(higher, context_of(world.session, up_to_seq=2))
    await world.own(assistant("still mine"))
