"""CompactAsWriter beside writers, other compactions and deletions, and its callers."""

import asyncio

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import text_of, user
from tests.support.transcript.compaction import (
    Compacting,
    Gate,
)
from tests.support.transcript.fixtures import Service, refused
from tests.support.waiting import eventually


async def test_CompactAsWriter__of_two_at_once_one_wins(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    gate = compacting.peers.on_generate = Gate()
    callers = [asyncio.create_task(compacting.compact(claim)) for _ in range(2)]
    await eventually(lambda: len(compacting.peers.prompts) == 2)
    gate.opened.set()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    failures = [one for one in outcomes if isinstance(one, MeshError)]
    assert [failure.reason for failure in failures] == [Reason.CONFLICT]
    assert sum(entry.body.HasField("compaction") for entry in await compacting.session.entries()) == 1


async def test_CompactAsWriter__entries_appended_meanwhile_follow_the_kept_ones(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    gate = compacting.peers.on_generate = Gate()
    caller = asyncio.create_task(compacting.compact(claim))
    await gate.reached.wait()
    await asyncio.wait_for(compacting.session.append([user("meanwhile")]), 60)
    gate.opened.set()
    summary = (await caller).summary
    assert summary.seq == 13
    assert text_of((await compacting.context()).entries[-1]) == "meanwhile"


async def test_CompactAsWriter__a_writer_that_lost_its_claim_writes_no_summary(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    gate = compacting.peers.on_generate = Gate()
    caller = asyncio.create_task(compacting.compact(claim))
    await gate.reached.wait()
    await compacting.session.acquire(2)
    gate.opened.set()
    with refused(Reason.WRITER_CLAIM_LOST):
        await caller
    with refused(Reason.WRITER_CLAIM_LOST):
        await compacting.compact(claim)
    assert len(compacting.peers.prompts) == 1, "the second time no model was asked"
    assert len(await compacting.session.entries()) == 11


async def test_CompactAsWriter__a_transcript_deleted_meanwhile_gets_no_summary(
    compacting: Compacting,
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    gate = compacting.peers.on_generate = Gate()
    caller = asyncio.create_task(compacting.compact(claim))
    await gate.reached.wait()
    await compacting.session.create_anew()
    gate.opened.set()
    with refused(Reason.NOT_FOUND):
        await caller
    assert len(await compacting.session.entries()) == 1


async def test_CompactAsWriter__inside_a_prompt_window_it_is_a_takeover(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    fence = await compacting.session.open_window(claim)
    await compacting.compact(claim)
    with refused(Reason.SESSION_TAKEOVER) as facts:
        await compacting.session.close_window(claim, fence)
    assert (facts["offending_kind"], facts["cause"]) == ("COMPACTION", "KIND")


async def test_CompactAsWriter__is_for_the_writer(compacting: Compacting) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    with refused(Reason.NOT_FOUND):
        await compacting.compact(claim, token=compacting.session.sibling().run_token(claim))
    with refused(Reason.CALLER_NOT_ALLOWED):
        await compacting.compact(claim, token=compacting.session.client_token())
    assert not compacting.peers.judged


async def test_CompactAsWriter__a_service_without_peers_refuses(
    compacting: Compacting, service: Service
) -> None:
    claim = await compacting.session.acquire(1)
    await compacting.converse(claim, turns=5)
    alone = Compacting(service.session(compacting.session.tenant_id), compacting.peers)
    object.__setattr__(alone.session, "session_id", compacting.session.session_id)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await alone.compact(claim)
    assert len((await alone.context()).entries) == 10
