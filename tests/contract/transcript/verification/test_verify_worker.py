"""The worker verifies the transcripts of a tenant, a few entries in each round."""

import asyncio
from urllib.request import urlopen

import pytest
import structlog
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh_devstack.ports import free_ports

from tests.support.transcript.activities import recorded
from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.fixtures import Session
from tests.support.transcript.forgery import Forger
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier_sessions import APPLY, REVERT, TierSession, dropped
from tests.support.transcript.verifying import intact, mismatch, verification
from tests.support.transcript.workers import Workers

pytestmark = pytest.mark.usefixtures("only_tenant_with_work")


async def _reached(superuser: Superuser, session: Session) -> tuple[str, int]:
    """Return where the worker continues."""
    statement = "select verified_session_id, verified_seq from tenants where tenant_id = %s"
    [(session_id, seq)] = await (await superuser.execute(statement, (session.tenant_id,))).fetchall()
    return session_id, seq


async def test_rounds_go_through_all_transcripts_and_report_the_one_that_is_not_intact(
    tier_session: TierSession, workers: Workers, superuser: Superuser
) -> None:
    sessions = sorted(
        [tier_session.session, *(tier_session.session.sibling() for _ in range(2))],
        key=lambda one: one.session_id,
    )
    for session in sessions:
        await session.create()
        for number in range(6):
            await session.append([user(str(number))])
    await Forger(superuser, sessions[1]).set_body(3, user("forged").SerializeToString(deterministic=True))
    (port,) = free_ports(1)
    places = []
    async with workers.open(metrics_listen=f"127.0.0.1:{port}", verified_entries_per_round=4) as worker:
        with structlog.testing.capture_logs() as logged:
            for _ in range(5):
                await worker.work_once()
                places.append(await _reached(superuser, sessions[0]))
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    first, second, third = (session.session_id for session in sessions)
    assert places == [
        (first, 4),
        (second, 1),
        (third, 3),  # Behind the mismatch in the second.
        ("", 0),
        (first, 4),
    ]
    [event] = [event for event in logged if event["event"] == "transcript_not_intact"]
    assert {name: event[name] for name in ("log_level", "tenant", "session", "seq", "cause")} == {
        "log_level": "error",
        "tenant": sessions[1].tenant_id,
        "session": second,
        "seq": 3,
        "cause": "CONTENT",
    }
    metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    name = "spawnmesh_transcript_verified_transcripts_total"
    for outcome, count in (("intact", 2), ("mismatch", 1)):
        found = f'{name}{{spawnmesh_transcript_verification_outcome="{outcome}"}}'
        assert float(metrics[found]) == count
    [failed] = await recorded(sessions[1], 1)
    assert failed.failed == activity_pb.Failed(
        action=activity_pb.FAILED_ACTION_VERIFY, reason="STORED_HASH_DIFFERS", seq=3
    )


async def test_externalized_payloads_are_verified(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
    kept = await intact(filled.session)
    await filled.tier(APPLY)
    assert await dropped(superuser, filled)
    assert await intact(filled.session, after=kept) == await intact(filled.session) == kept
    rows = await superuser.execute(
        "select sha256 from payloads where tenant_id = %s and seq = 6", (filled.session.tenant_id,)
    )
    [(sha256,)] = await rows.fetchall()
    await asyncio.to_thread(filled.blobs.overwrite, sha256, b"x" * 12_000)
    assert await mismatch(filled.session) == (6, "PAYLOAD")
    async with workers.open() as worker:
        with structlog.testing.capture_logs() as logged:
            await worker.work_once()
    [event] = [event for event in logged if event["event"] == "transcript_not_intact"]
    assert (event["seq"], event["cause"]) == (6, "PAYLOAD")
    await Forger(superuser, filled.session).set_body(4, assistant("x").SerializeToString(deterministic=True))
    assert await mismatch(filled.session) == (4, "PAYLOAD")


async def test_a_transcript_is_intact_while_it_is_appended_to_and_its_payloads_move(
    filled: TierSession,
) -> None:
    async def change() -> None:
        for number in range(4):
            await filled.tier(APPLY)
            await filled.session.append([user(str(number))] * 3)
            await filled.tier(REVERT)

    changing = asyncio.create_task(change())
    seqs = [0]
    while not changing.done():
        seqs.append((await verification(filled.session))[-1].intact.seq)
    await changing
    assert seqs == sorted(seqs)
    assert (await intact(filled.session)).seq == 9 + 4 * 3


async def test_a_worker_that_is_told_to_verifies_nothing(
    tier_session: TierSession, workers: Workers, superuser: Superuser
) -> None:
    await tier_session.session.append([user("task")])
    async with workers.open(verified_entries_per_round=0) as worker:
        await worker.work_once()
    assert await _reached(superuser, tier_session.session) == ("", 0)
    async with workers.open(verified_entries_per_round=1) as worker:
        await worker.work_once()
    assert await _reached(superuser, tier_session.session) == (tier_session.session.session_id, 1)


async def test_a_round_goes_on_behind_an_entry_that_fills_a_page(
    tier_session: TierSession, workers: Workers, superuser: Superuser
) -> None:
    session = tier_session.session
    claim = await session.acquire(1)
    for _ in range(2):
        await session.append([assistant("x" * 3_000_000)], claim=claim)
    async with workers.open(verified_entries_per_round=2) as worker:
        await worker.work_once()
        assert await _reached(superuser, session) == (session.session_id, 2)
        await worker.work_once()
        assert await _reached(superuser, session) == ("", 0)
