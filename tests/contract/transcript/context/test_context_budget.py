"""AssembleContext with reserved tokens or accompanying texts that use up the whole budget."""

import asyncio
import uuid
from typing import Any

import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.bodies import assistant, note, text_of, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.tables import Superuser
from tests.support.waiting import eventually

SLOW = "\t" * 1_000_000
"""Counting it takes a fifth of a second."""


async def _context(session: Session, token_budget: int, **more: Any) -> pb.AssembleContextResponse:
    request = pb.AssembleContextRequest(session_id=session.session_id, token_budget=token_budget, **more)
    with use_token(session.client_token()):
        return await session.service.peer.unary(
            session.service.stub.AssembleContext, request, timeout_seconds=60
        )


async def _talk(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("hi")])
    for _ in range(3):
        await session.append([assistant("a b c") for _ in range(100)], claim=claim)


@pytest.mark.parametrize("has_tier", [False, True])
async def test_AssembleContext__a_reserve_over_the_budget_leaves_the_newest_user_message(
    session: Session, has_tier: bool
) -> None:
    await session.prepare_tenant(2, stub_large_tool_payloads=has_tier, compact_at_percent=80)
    await _talk(session)
    for budget, reserved in [
        (1, 1),
        (1, 1_000_000),
        (100_000, 2_147_483_647),
        *((100, n) for n in (*range(96, 105), *range(105, 900, 61))),
    ]:
        context = await _context(session, budget, reserved_token_count=reserved)
        texts = [text_of(entry) for entry in context.entries]
        if reserved >= budget:
            assert (texts, context.dropped_entry_count) == (["hi"], 300), (budget, reserved)
            assert context.compaction_due
        else:
            assert texts[0] == "hi"


async def test_AssembleContext__accompanying_texts_over_the_budget_leave_the_newest_user_message(
    session: Session,
) -> None:
    await session.append([note("2 files"), user("read them")])
    for budget in (1, 2_000, 3_000):
        context = await _context(session, budget, accompanying_texts=["You are helpful. " + "tool " * 4_000])
        assert context.accompanying_token_count > 4_000
        assert [text_of(entry) for entry in context.entries] == ["read them"]
        assert context.dropped_entry_count == 1


async def test_AssembleContext__without_a_user_message_nothing_is_read(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([assistant("a")], claim=claim)
    context = await _context(session, 10, reserved_token_count=200)
    assert (list(context.entries), context.token_count, context.dropped_entry_count) == ([], 0, 1)


@pytest.mark.parametrize("model", ["", "openai/gpt-5"])
async def test_AssembleContext__others_are_served_while_texts_are_counted(
    session: Session, superuser: Superuser, model: str
) -> None:
    await session.append([user("hi")])
    statement = """
        select count(*) from pg_stat_activity
        where state = 'idle in transaction' and datname = current_database()
            and state_change < clock_timestamp() - interval '500 ms'
        """

    async def served_while_counting() -> bool:
        """Return whether more calls were served than there are pauses between the texts."""
        texts = [f"{model} {uuid.uuid4()} {number}{SLOW}" for number in range(5)]
        counting = asyncio.create_task(
            _context(session, 2_000_000_000, accompanying_texts=texts, model=model)
        )
        served = 0
        while not counting.done():
            await session.entries()
            [(idle,)] = await (await superuser.execute(statement)).fetchall()
            assert not idle, "a transaction was open meanwhile"
            served += 1
        assert (await counting).accompanying_token_count > 5 * 60_000
        return served > len(texts) + 1

    # A busy machine may serve few calls in the time of one counting.
    await eventually(served_while_counting)


async def test_AssembleContext__an_accompanying_text_has_a_limit(session: Session) -> None:
    longest = "é" * (512 * 1024)
    assert (await _context(session, 10, accompanying_texts=[longest])).accompanying_token_count
    with refused(Reason.INVALID_REQUEST):
        await _context(session, 10, accompanying_texts=["short", longest + "."])
