"""The prompt window: changes that it holds over, changes that break it, and the reported
position."""

import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, mirror, result, user
from tests.support.transcript.fixtures import Session, refused
from tests.support.transcript.forgery import Forger
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser
from tests.support.transcript.window_cases import FENCE, HOLD, OTHER_RUN, TRIP, World


@pytest.fixture
async def world(session: Session, superuser: Superuser) -> World:
    task = await session.append([user("task")])
    claim = await session.acquire(1)
    await session.append([assistant("working", "c")], claim=claim)
    return World(session, claim, task.entries[0].entry_id, Forger(superuser, session))


@pytest.mark.parametrize("name", list(HOLD))
async def test_CloseWindow__holds_over(world: World, name: str) -> None:
    fence = await world.session.open_window(world.claim)
    assert fence.seq == FENCE
    await HOLD[name](world)
    moved = await world.session.close_window(world.claim, fence)
    head = (await world.session.page()).head
    assert (moved.incarnation, moved.seq, moved.chain_hash) == (head.incarnation, head.seq, head.chain_hash)
    assert await world.session.close_window(world.claim, moved) == moved


@pytest.mark.parametrize("name", list(TRIP))
async def test_CloseWindow__is_broken_by(world: World, name: str) -> None:
    meanwhile, seq, kind, cause = TRIP[name]
    fence = await world.session.open_window(world.claim)
    await meanwhile(world)
    for _ in range(2):
        with refused(Reason.SESSION_TAKEOVER) as facts:
            await world.session.close_window(world.claim, fence)
        assert (facts["offending_seq"], facts["offending_kind"], facts["cause"]) == (str(seq), kind, cause)
    head = (await world.session.page(page_size=1)).head
    assert (facts["incarnation"], facts["seq"], facts["chain_hash"]) == (
        head.incarnation,
        str(head.seq),
        head.chain_hash,
    )
    assert (facts["writer_run_id"], facts["writer_epoch"]) == (head.writer_run_id, str(head.writer_epoch))


def test_there_are_enough_cases() -> None:
    assert len(HOLD) + len(TRIP) >= 40


async def test_forged_canonical_entries_hold(world: World) -> None:
    """Otherwise mistakes of the forger, and not the entries, would break the windows above."""
    fence = await world.session.open_window(world.claim)
    await world.forge(assistant("a"))
    await world.forge(result("c", "r"), role="TOOL_RESULT")
    assert (await world.session.close_window(world.claim, fence)).seq == 5


async def test_CloseWindow__a_silently_lost_claim_is_a_takeover(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.own(assistant("a"))
    await world.other()
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await world.session.close_window(world.claim, fence)
    assert (facts["writer_run_id"], facts["seq"]) == (OTHER_RUN, "4")


async def test_CloseWindow__a_released_claim_is_a_takeover(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.session.release(world.claim)
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.session.close_window(world.claim, fence)


async def test_CloseWindow__a_deleted_transcript_is_not_found(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.session.delete()
    with refused(Reason.NOT_FOUND):
        await world.session.close_window(world.claim, fence)


async def test_OpenWindow__is_for_the_current_writer(world: World) -> None:
    await world.other()
    with refused(Reason.WRITER_CLAIM_LOST) as facts:
        await world.session.open_window(world.claim)
    assert facts["writer_run_id"] == OTHER_RUN
    fresh = world.session.sibling()
    with refused(Reason.NOT_FOUND):
        await fresh.open_window(world.claim)


async def test_OpenWindow__makes_a_higher_claim_the_current_one(world: World) -> None:
    higher = pb.WriterClaim(run_id=OTHER_RUN, epoch=2)
    fence = await world.session.open_window(higher)
    head = (await world.session.page()).head
    assert (head.writer_run_id, head.writer_epoch, head.seq) == (OTHER_RUN, 2, fence.seq)
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.own(assistant("a"))
    await world.session.release(higher)
    with refused(Reason.WRITER_CLAIM_LOST):
        await world.session.open_window(higher)


async def test_CloseWindow__many_windows_in_a_row_on_one_fence(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    for number in range(30):
        await world.own(assistant(str(number), "c"), result("c", "r"))
        if number % 3 == 0:
            await world.gateway(mirror(str(number)))
        fence = await world.session.close_window(world.claim, fence)
    assert fence == await world.session.open_window(world.claim)
    assert fence.seq == 3 + 60 + 10


async def test_CloseWindow__an_open_window_harms_neither_its_fence_nor_others(world: World) -> None:
    left_open = await world.session.open_window(world.claim)
    with pytest.raises(RuntimeError):
        await _failing_in_a_window(world)
    await world.own(assistant("a"))
    assert (await world.session.close_window(world.claim, left_open)).seq == 5


async def _failing_in_a_window(world: World) -> None:
    await world.session.open_window(world.claim)
    await world.own(result("c", "r"))
    raise RuntimeError("the model call failed")


async def test_CloseWindow__after_a_takeover_a_new_window_holds(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    await world.people(user("u"))
    with refused(Reason.SESSION_TAKEOVER):
        await world.session.close_window(world.claim, fence)
    fence = await world.session.open_window(world.claim)
    await world.own(assistant("a"))
    await world.session.close_window(world.claim, fence)


async def test_CloseWindow__a_fence_of_another_transcript_is_a_takeover(world: World) -> None:
    sibling = world.session.sibling()
    await sibling.create()
    with refused(Reason.SESSION_TAKEOVER) as facts:
        await world.session.close_window(world.claim, await sibling.open_window(await sibling.acquire(1)))
    assert facts["cause"] == "INCARNATION"
    ahead = await world.session.open_window(world.claim)
    ahead.seq = 99
    with refused(Reason.SESSION_TAKEOVER) as facts:
        await world.session.close_window(world.claim, ahead)
    assert (facts["cause"], facts["offending_seq"]) == ("SHRUNK", "4")


@pytest.mark.parametrize(
    "broken",
    [
        pb.Fence(incarnation="i", seq=0, chain_hash="0" * 64),
        pb.Fence(incarnation="i", seq=1, chain_hash="zz"),
        None,
    ],
)
async def test_CloseWindow__malformed_fences_are_refused(world: World, broken: pb.Fence | None) -> None:
    with refused(Reason.INVALID_REQUEST):
        await world.session.close_window(world.claim, broken or pb.Fence())


async def test_windows_are_for_the_run_and_its_own_claim(world: World) -> None:
    fence = await world.session.open_window(world.claim)
    other = pb.WriterClaim(run_id=OTHER_RUN, epoch=1)
    for token in (
        world.session.client_token(),
        world.session.service_token(),
        world.session.run_token(other),
    ):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await world.session.open_window(world.claim, token=token)
        with refused(Reason.CALLER_NOT_ALLOWED):
            await world.session.close_window(world.claim, fence, token=token)
    sibling = world.session.sibling()
    await sibling.create()
    with refused(Reason.NOT_FOUND):
        await sibling.open_window(world.claim, token=world.session.run_token(world.claim))


async def _pages_touched(world: World, since: int) -> int:
    """Return the buffers that a window's scan reads after this number of appends since its
    fence."""
    head = await world.forger.execute(
        "select seq from transcripts where tenant_id = %(tenant)s and session_id = %(session)s"
    )
    session = world.session
    cursor = await world.forger.connection.execute(
        f"explain (analyze, buffers, format json, timing off) {all_statements()['scan_window']}".encode(),
        {
            "tenant_id": session.tenant_id,
            "session_id": session.session_id,
            "from_seq": head[0][0] - since,
            "row_count": 256,
            "max_bytes": 2**22,
        },
    )
    rows = await cursor.fetchall()
    plan = rows[0][0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_CloseWindow__costs_the_entries_since_the_fence(world: World) -> None:
    """Also without planner statistics, and with a generic plan."""
    for _ in range(4):
        await world.own(*[assistant("a" * 500)] * 40)
        short = [await _pages_touched(world, since) for since in (1, 100)]
    for _ in range(20):
        await world.own(*[assistant("a" * 500)] * 250)
    for _ in range(4):
        long = [await _pages_touched(world, since) for since in (1, 100)]
    assert max(short + long) < 40, (short, long)
    assert short[1] > short[0]
