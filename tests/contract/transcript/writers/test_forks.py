"""Forks of a transcript at one of its entries."""

import pytest
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, result, superseded, text_of, user
from tests.support.transcript.fixtures import Session, refused


async def texts_at(session: Session, seq: int) -> list[str]:
    child = session.sibling()
    await child.create(fork_of=session, up_to_seq=seq)
    return [text_of(entry) for entry in (await child.entries())[1:]]


async def test_CreateTranscript__a_fork_at_an_entry_has_nothing_behind_it(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("one")])
    await session.append([assistant("call", "c1"), result("c1", "result")], claim=claim)
    await session.append([assistant("two")], claim=claim)
    whole = ["one", "call", "result", "two"]
    assert {seq: await texts_at(session, seq) for seq in (1, 2, 4, 5)} == {
        1: [],
        2: whole[:1],
        4: whole[:3],
        5: whole,
    }


async def test_CreateTranscript__a_fork_beyond_the_end_is_refused(session: Session) -> None:
    await session.append([user("one")])
    child = session.sibling()
    with refused(Reason.FORK_SEQ_REFUSED) as facts:
        await child.create(fork_of=session, up_to_seq=3)
    assert (facts["seq"], facts["last_seq"]) == ("3", "2")
    with refused(Reason.NOT_FOUND):
        await child.entries()
    await session.append([user("two")])
    assert await texts_at(session, 3) == ["one", "two"]


@pytest.mark.parametrize(("seq", "call_id"), [(3, "c1"), (4, "c1"), (5, "c3")])
async def test_CreateTranscript__a_fork_between_a_call_and_its_result_is_refused(
    session: Session, seq: int, call_id: str
) -> None:
    claim = await session.acquire(1)
    await session.append([user("one")])
    await session.append(
        [assistant("", "c1", "c2", "c3"), result("c2", "two"), result("c1", "one"), result("c3", "three")],
        claim=claim,
    )
    with refused(Reason.FORK_SEQ_REFUSED) as facts:
        await session.sibling().create(fork_of=session, up_to_seq=seq)
    assert (facts["seq"], facts["tool_call_id"]) == (str(seq), call_id)
    assert len(await texts_at(session, 6)) == 5


async def test_CreateTranscript__a_fork_behind_a_call_that_never_got_a_result(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("one"), assistant("call", "c1")], claim=claim)
    await session.append([user("go on")])
    assert (await texts_at(session, 3))[:2] == ["one", "call"]
    child = session.sibling()
    await child.create(fork_of=session, up_to_seq=3)
    assert (await child.entries())[-1].body.message.is_error


async def test_CreateTranscript__a_fork_has_no_draft_that_was_superseded_later(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("one")])
    draft = await session.append([assistant("draft", "c1")], claim=claim)
    assert (await texts_at(session, 3))[:2] == ["one", "draft"]
    await session.append([superseded(draft.entries[0].entry_id), result("c1", "late")], claim=claim)
    await session.append([assistant("final")], claim=claim)
    assert await texts_at(session, 3) == ["one"]
    assert await texts_at(session, 6) == ["one", "final"]
