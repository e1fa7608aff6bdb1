"""TierTranscript: moving large payloads to the blob store and back, its counts, and
interruptions."""

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from opentelemetry.metrics import NoOpMeter
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.metrics import ExternalizationMetrics
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder
from spawnmesh_transcript.operations.payload_uploader import open_payload_uploader
from spawnmesh_transcript.operations.tier_report import TierAction
from spawnmesh_transcript.operations.tiering import PayloadTiering
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import tier as tier_store

from tests.support.cpu_workers import cpu_workers
from tests.support.transcript.bodies import assistant, text_of
from tests.support.transcript.faulty_blobs import FaultyBlobStore
from tests.support.transcript.fixtures import refused
from tests.support.transcript.statements import all_statements
from tests.support.transcript.tables import Superuser, pages_touched
from tests.support.transcript.tier import NO_TAIL, long_text
from tests.support.transcript.tier_sessions import (
    APPLY,
    DRY_RUN,
    REVERT,
    TierSession,
    bodies,
    count_rows,
    dropped,
    key_of,
    nothing_is_lost,
    waiting,
)


async def test_TierTranscript__moves_results_appended_without_the_tier(
    old: TierSession, superuser: Superuser
) -> None:
    before = (await old.readings())["entries"]
    planned = await old.tier(DRY_RUN)
    assert await count_rows(superuser, old, "payloads") == 0
    assert planned["externalized_entry_count"] == planned["cooled_entry_count"] == 4
    assert await old.tier(APPLY) == planned
    assert await old.tier(APPLY) == await old.tier(DRY_RUN) == {}
    assert (await old.readings())["entries"] == before
    twin = old.to(old.session.sibling())
    await twin.session.create()
    await twin.fill()

    def shown(context: Any) -> list[str]:
        return [re.sub("file_[0-9a-z]{26}", "", text_of(entry)) for entry in context.entries]

    assert shown(await old.context(tail=NO_TAIL)) == shown(await twin.context(tail=NO_TAIL))


async def test_TierTranscript__fresh_results_stay_inline(
    tier_session: TierSession, superuser: Superuser
) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.converse(claim, long_text("a"))
    await tier_session.session.append([assistant("end")], claim=claim)
    assert await tier_session.tier(APPLY) == await tier_session.tier(DRY_RUN) == {}
    assert await dropped(superuser, tier_session) == {}


async def test_TierTranscript__is_refused_if_the_tenant_has_the_tier_off(filled: TierSession) -> None:
    await filled.tier(APPLY)
    await filled.set_tier(2, is_on=False)
    with refused(Reason.TIER_DISABLED):
        await filled.tier(APPLY)
    assert await filled.tier(DRY_RUN) == {}
    assert (await filled.tier(REVERT))["reverted_entry_count"] == 4


async def test_TierTranscript__a_revert_restores_the_original_rows(
    old: TierSession, superuser: Superuser
) -> None:
    before, stored = await old.readings(), await bodies(superuser, old)
    applied = await old.tier(APPLY)
    [file_id, *_] = [one.file_ids[0] for one in (await old.context(tail=NO_TAIL)).stubbed]
    reverted = await old.tier(REVERT)
    assert reverted == {"reverted_entry_count": 4, "reverted_bytes": applied["cooled_bytes"]}
    assert await old.tier(REVERT) == {}
    assert await bodies(superuser, old) == stored
    assert await count_rows(superuser, old, "payloads") == await count_rows(superuser, old, "stubs") == 0
    assert await asyncio.to_thread(old.blobs.object_keys) == []
    assert await old.readings() == before
    with refused(Reason.NOT_FOUND):
        await old.describe(file_id)
    assert await old.tier(APPLY) == applied


async def test_TierTranscript__apply_resumes_after_any_interruption(
    old: TierSession,
    faulty: TierSession,
    faulty_blobs: FaultyBlobStore,
    superuser: Superuser,
    database: Database,
) -> None:
    before = (await old.readings())["entries"]
    planned = await old.tier(DRY_RUN)
    faulty_blobs.puts_to_lose = 100
    # Rows were written and blobs were put before the interruption.
    failed = await faulty.tier(APPLY)
    assert (failed["failed_entry_count"], failed["failure_reason"]) == (4, "DEPENDENCY_UNAVAILABLE")
    await nothing_is_lost(old, superuser, before)
    faulty_blobs.puts_to_lose = 0
    async with asyncio.timeout(60):  # The contexts above have begun the repair.
        while await waiting(superuser, old):
            await asyncio.sleep(0.02)
    # The interruption came before any inline copy was dropped.
    await nothing_is_lost(old, superuser, before)
    assert await dropped(superuser, old) == {}
    applied = await old.tier(APPLY)
    assert applied["cooled_bytes"] == planned["cooled_bytes"]
    await nothing_is_lost(old, superuser, before)


async def test_TierTranscript__rows_whose_blobs_were_never_put_are_resumed(
    old: TierSession, away: TierSession, superuser: Superuser
) -> None:
    before = (await old.readings())["entries"]
    planned = await old.tier(DRY_RUN)
    applied = await away.tier(APPLY)
    assert applied["failed_entry_count"] == 4
    assert applied["condensed_entry_count"] == planned.pop("condensed_entry_count"), "no blob is needed"
    assert await count_rows(superuser, old, "payloads") == 6
    assert (await old.session.entries())[0].seq == 1
    assert await old.tier(DRY_RUN) == planned
    assert await old.tier(APPLY) == planned
    await nothing_is_lost(old, superuser, before)


async def test_TierTranscript__revert_resumes_after_any_interruption(
    filled: TierSession, superuser: Superuser, database: Database
) -> None:
    before = await filled.readings()
    bytes_before = [row[2] for row in await bodies(superuser, filled)]
    await filled.tier(APPLY)
    key = key_of(filled)
    # After the transaction that restores the inline copies, before the release of a blob.
    whole = {seq: body for seq, body in enumerate(bytes_before, start=1) if seq in (2, 4)}
    assert set(await tier_store.restore_inline_payloads(database, key, dict(whole))) == {2, 4}
    await nothing_is_lost(filled, superuser, before["entries"])
    assert await filled.tier(APPLY) != {}, "what was begun to be reverted is brought to its end first"
    await nothing_is_lost(filled, superuser, before["entries"])

    # After the release of a blob, before its row is deleted.
    assert set(await tier_store.restore_inline_payloads(database, key, dict(whole))) == {2, 4}
    async with database.transaction(key.tenant_id) as connection:
        leaving = await tier_store.list_releasing_payloads(connection, key, row_count=100)
    for blob_id, _ in leaving:
        with use_token(
            TokenMinter("transcript", filled.blobs.service.keys / "transcript.pem").service_token(
                key.tenant_id
            )
        ):
            stub: Any = BlobServiceStub(filled.blobs.service.peer.channel)
            await filled.blobs.service.peer.unary(
                stub.ReleaseBlob, blob_pb.ReleaseBlobRequest(blob_id=blob_id), timeout_seconds=60
            )
    await nothing_is_lost(filled, superuser, before["entries"])
    assert (await filled.tier(REVERT))["reverted_entry_count"] == 4
    assert (
        await count_rows(superuser, filled, "payloads") == await count_rows(superuser, filled, "stubs") == 0
    )
    assert await asyncio.to_thread(filled.blobs.object_keys) == []
    assert [row[2] for row in await bodies(superuser, filled)] == bytes_before


async def test_TierTranscript__counts_failures_and_a_repeat_moves_the_rest(
    old: TierSession, faulty: TierSession, faulty_blobs: FaultyBlobStore, superuser: Superuser
) -> None:
    planned = await old.tier(DRY_RUN)
    before = (await old.readings())["entries"]
    faulty_blobs.refused_sizes = {12_000}  # This is one of the two long results.
    applied = await faulty.tier(APPLY)
    assert applied["failed_entry_count"] == 1
    assert applied["cooled_entry_count"] == applied["externalized_entry_count"] == 3
    assert set(await dropped(superuser, old)) == {2, 4, 8}
    faulty_blobs.refused_sizes = set()
    rest = await faulty.tier(APPLY)
    assert rest["cooled_entry_count"] == rest["externalized_entry_count"] == 1
    assert applied["cooled_bytes"] + rest["cooled_bytes"] == planned["cooled_bytes"]

    rows = await superuser.execute(
        "select blob_id from payloads where tenant_id = %s and seq = 8", (old.session.tenant_id,)
    )
    faulty_blobs.refused_releases = {(await rows.fetchall())[1][0]}
    reverted = await faulty.tier(REVERT)
    assert reverted["reverted_bytes"] == planned["cooled_bytes"]
    assert reverted["reverted_entry_count"] + reverted["failed_entry_count"] == 4
    await nothing_is_lost(old, superuser, before)
    faulty_blobs.refused_releases = set()
    again = await faulty.tier(REVERT)
    assert again == {"reverted_entry_count": reverted["failed_entry_count"]}
    assert await asyncio.to_thread(old.blobs.object_keys) == []


class _GoneAfter:
    """A database that fails from the n-th transaction on."""

    def __init__(self, database: Database, transaction_count: int) -> None:
        self.database = database
        self.left = transaction_count

    def transaction(self, tenant_id: str) -> Any:
        self.left -= 1
        if self.left < 0:
            raise psycopg.OperationalError("away")
        return self.database.transaction(tenant_id)


async def test_TierTranscript__reports_what_was_done_before_the_database_failed(
    tier_session: TierSession, database: Database
) -> None:
    claim = await tier_session.session.acquire(1)
    await tier_session.session.append([assistant("word") for _ in range(100)], claim=claim)
    blobs = BlobStore(tier_session.session.service.peer)
    async with (
        open_activity_recorder(database) as activities,
        open_payload_uploader(database, blobs, activities) as uploader,
        cpu_workers() as workers,
    ):
        for transaction_count in (0, 1, 2, 3):
            gone: Any = _GoneAfter(database, transaction_count)
            metrics = ExternalizationMetrics(NoOpMeter("test"))
            tiering = PayloadTiering(gone, blobs, workers, uploader, activities, metrics)
            tier = tiering.tier(key_of(tier_session), TierAction.DRY_RUN, after_seq=0, max_entry_count=1_000)
            if transaction_count < 2:
                with pytest.raises(psycopg.OperationalError):
                    await tier
                continue
            report = await tier
            told = (report.examined_entry_count, report.next_after_seq, report.done)
            assert told == ((64, 64, False) if transaction_count == 2 else (101, 101, True))


async def test_TierTranscript__revert_without_the_blob_store_changes_nothing(
    filled: TierSession, away: TierSession, superuser: Superuser
) -> None:
    before = await filled.readings()
    await filled.tier(APPLY)
    reverted = await away.tier(REVERT)
    assert reverted == {"failed_entry_count": 4, "failure_reason": "DEPENDENCY_UNAVAILABLE"}
    assert len(await dropped(superuser, filled)) == 4
    assert await filled.readings() == before


async def test_changed_bytes_from_the_blob_store_are_refused(
    filled: TierSession, faulty: TierSession, faulty_blobs: FaultyBlobStore, superuser: Superuser
) -> None:
    """Also if the blob store itself changed them."""
    faulty_blobs.changes_bytes = True
    failed = await faulty.tier(APPLY)
    assert failed == {"failed_entry_count": 4, "failure_reason": "STORED_HASH_DIFFERS"}
    assert await dropped(superuser, filled) == {}
    await filled.tier(APPLY)
    with refused(Reason.STORED_HASH_DIFFERS):
        await faulty.session.entries()
    assert await faulty.tier(REVERT) == failed
    assert len(await dropped(superuser, filled)) == 4


async def test_a_move_of_entries_that_another_call_moved_does_nothing(
    filled: TierSession, superuser: Superuser, database: Database
) -> None:
    """The lock decides: each call moves only what it finds under it."""
    key = key_of(filled)
    async with database.transaction(key.tenant_id) as connection:
        kept = await tier_store.list_payloads(connection, key, [4])
    [(_, _, whole)] = [row for row in await bodies(superuser, filled) if row[0] == 4]
    body = tier_store.ShorterBody(4, len(whole), [file.blob_id for file in kept[4]], whole[:100])
    other_blob = replace(body, blob_ids=["blb_" + "0" * 26])
    other_size = replace(body, whole_bytes=len(whole) + 1)
    for stale in (other_blob, other_size):
        assert await tier_store.drop_inline_payloads(database, key, [stale]) == {}
    assert await tier_store.restore_inline_payloads(database, key, {4: None}) == {4: 0}
    assert await tier_store.drop_inline_payloads(database, key, [body]) == {}, "its payload leaves"
    async with database.transaction(key.tenant_id) as connection:
        await payload_store.mark_stored(connection, key, body.blob_ids)
        assert await payload_store.read_payload(connection, key.tenant_id, body.blob_ids[0]) is None
    stub = Stub(4, None, 0, (), Vocabulary.O200K)
    assert await tier_store.record_payloads(database, key, [stub], first_seq=0) == set()
    gone = replace(key, session_id="ses_" + "0" * 26)
    assert await tier_store.restore_inline_payloads(database, gone, {4: None}) == {}
    assert await dropped(superuser, filled) == {}


async def test_statements_on_the_tier_cost_what_they_move(
    tier_session: TierSession, superuser: Superuser, database: Database
) -> None:
    """Also if the planner's statistics are of short transcripts."""
    await superuser.execute("analyze entries")
    claim = await tier_session.session.acquire(1)
    for _ in range(8):
        await tier_session.session.append([assistant("word " * 50) for _ in range(250)], claim=claim)
    [seq, other] = await tier_session.converse(claim, long_text("a"), long_text("b"))
    for _ in range(4):
        await tier_session.session.append([assistant("word " * 50) for _ in range(250)], claim=claim)
    key = {"tenant_id": tier_session.session.tenant_id, "session_id": tier_session.session.session_id}
    async with database.transaction(key["tenant_id"]) as connection:
        kept = await tier_store.list_payloads(connection, key_of(tier_session), [seq])
    [(_, _, whole)] = [row for row in await bodies(superuser, tier_session) if row[0] == seq]
    entry = {"seq": seq, "whole_bytes": len(whole), "blob_ids": [kept[seq][0].blob_id]}
    asked: dict[str, dict[str, Any]] = {
        "scan_sizes": {**key, "after_seq": seq, "row_count": 20},
        "scan_payloads": {**key, "first_seq": 1, "last_seq": 5_000},
        "list_payloads": {**key, "seqs": [seq, other]},
        "list_inline_entries": {**key, "after_seq": 0, "last_seq": 5_000, "row_count": 16},
        "list_releasing_payloads": {**key, "seqs": None, "row_count": 32},
        "list_transcripts_with_inline_payloads": {
            "tenant_id": key["tenant_id"],
            "after_session_id": "",
            "row_count": 10,
        },
        "list_transcripts_with_unsettled_payloads": {
            "tenant_id": key["tenant_id"],
            "after_session_id": "",
            "row_count": 10,
        },
        "drop_inline_payload": {**key, **entry, "body": whole[:100]},
        "restore_inline_payload": {**key, "seq": seq, "body": whole},
    }
    statements = all_statements()
    for _ in range(7):
        with suppress(_RolledBack):
            async with database.transaction(key["tenant_id"]) as connection:
                touched = {
                    name: await pages_touched(connection, statements[name], asked[name]) for name in asked
                }
                rows = await connection.execute(
                    "select is_releasing, is_inline from payloads"
                    " where session_id = %(session_id)s and is_releasing",
                    key,
                )
                assert [[*row.values()] for row in await rows.fetchall()] == [[True, False]], (
                    "it was moved forth and back"
                )
                raise _RolledBack
        assert max(touched.values()) < 1_000, touched  # Planning reads the catalog.
    assert max(touched.values()) < 100, touched
    assert await dropped(superuser, tier_session) == {}


class _RolledBack(Exception):
    """Rolls the transaction back."""
