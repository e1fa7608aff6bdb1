"""A context where what is set aside of its budget is all of it or more, and what is counted for that."""

import asyncio
from typing import Any

import pytest
from psycopg import AsyncConnection
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_with_token

from tests.contract.attachment_blob_fixtures import blobs
from tests.contract.transcript_fixtures import (
    Session,
    assistant,
    note,
    refused,
    service,
    session,
    superuser,
    text_of,
    user,
)
from tests.contract.transcript_tier import tier_service, tiered

__all__ = ["blobs", "service", "session", "superuser", "tier_service", "tiered"]

SLOW = "\t" * 1_000_000
"""Takes a fifth of a second to count."""


async def _context(session: Session, token_budget: int, **more: Any) -> pb.AssembleContextResponse:
    request = pb.AssembleContextRequest(session_id=session.session_id, token_budget=token_budget, **more)
    with acting_with_token(session.client_token()):
        return await session.service.peer.unary(session.service.stub.AssembleContext, request, timeout_seconds=60)


async def _talk(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([user("hi")])
    for _ in range(3):
        await session.append([assistant("a b c") for _ in range(100)], claim=claim)


@pytest.mark.parametrize("has_tier", [False, True])
async def test_AssembleContext__more_set_aside_than_there_is_leaves_the_newest_user_message(
    session: Session, has_tier: bool
) -> None:
    await session.prepare_tenant(2, stub_large_tool_payloads=has_tier, compact_at_percent=80)
    await _talk(session)
    for budget, reserved in [(1, 1), (1, 1_000_000), (100_000, 2_147_483_647), *((100, n) for n in range(95, 900))]:
        context = await _context(session, budget, reserved_token_count=reserved)
        texts = [text_of(entry) for entry in context.entries]
        if reserved >= budget:
            assert (texts, context.dropped_entry_count) == (["hi"], 300), (budget, reserved)
            assert context.compaction_due
        else:
            assert texts[0] == "hi"


async def test_AssembleContext__so_does_what_is_sent_beside_it(session: Session) -> None:
    await session.append([note("2 files"), user("read them")])
    for budget in (1, 2_000, 3_000):
        context = await _context(session, budget, accompanying_texts=["You are helpful. " + "tool " * 4_000])
        assert context.accompanying_token_count > 4_000
        assert [text_of(entry) for entry in context.entries] == ["read them"]
        assert context.dropped_entry_count == 1


async def test_AssembleContext__nothing_is_read_where_there_is_no_user_message(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append([assistant("a")], claim=claim)
    context = await _context(session, 10, reserved_token_count=200)
    assert (list(context.entries), context.token_count, context.dropped_entry_count) == ([], 0, 1)


@pytest.mark.parametrize("model", ["", "openai/gpt-5"])
async def test_AssembleContext__others_are_served_while_texts_are_counted(
    session: Session, superuser: AsyncConnection[tuple[Any, ...]], model: str
) -> None:
    await session.append([user("hi")])
    texts = [f"{model} {number}{SLOW}" for number in range(8)]
    counting = asyncio.create_task(_context(session, 2_000_000_000, accompanying_texts=texts, model=model))
    served = idle = 0
    statement = """
        select count(*) from pg_stat_activity
        where state = 'idle in transaction' and datname = current_database() and state_change < clock_timestamp() - interval '500 ms'
        """
    while not counting.done():
        await session.entries()
        [(count,)] = await (await superuser.execute(statement)).fetchall()
        served, idle = served + 1, idle + count
    assert (await counting).accompanying_token_count > 8 * 60_000
    assert served > 10
    assert not idle, "a transaction was open meanwhile"


async def test_AssembleContext__one_text_beside_it_has_an_end(session: Session) -> None:
    longest = "é" * (512 * 1024)
    assert (await _context(session, 10, accompanying_texts=[longest])).accompanying_token_count
    with refused(Reason.INVALID_REQUEST):
        await _context(session, 10, accompanying_texts=["short", longest + "."])
