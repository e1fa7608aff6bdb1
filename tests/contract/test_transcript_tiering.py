"""Moving large payloads of a transcript out of the database and back: what it says, what it leaves, and what cuts it off."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry.metrics import NoOpMeter
from psycopg.types.json import Jsonb
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    BlobServiceStub,
    add_BlobServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_transcript import payload_store, tier_store
from spawnmesh_transcript.activities import open_activities
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.metrics import CoolingMetrics
from spawnmesh_transcript.payloads import open_payloads
from spawnmesh_transcript.tiering import Action, Tiering

from tests.contract.attachment_blob_fixtures import BlobService, blobs
from tests.contract.serving import served, shared_settings
from tests.contract.test_transcript_context import pages_touched
from tests.contract.transcript_cold import (
    APPLY,
    DRY_RUN,
    REVERT,
    Cold,
    Superuser,
    away,
    bodies,
    cold,
    count_rows,
    database,
    dropped,
    filled,
    key_of,
    nothing_is_lost,
    old,
    replica,
    waiting,
)
from tests.contract.transcript_fixtures import Service, assistant, refused, service, superuser, text_of
from tests.contract.transcript_tier import NO_TAIL, long_text, tier_service, tiered

__all__ = ["away", "blobs", "cold", "database", "filled", "old", "service", "superuser", "tier_service", "tiered"]


class _Fickle(BlobServiceServicer):
    """A blob store that refuses to put, or to give up, what it is told to, or gives other bytes; else it is the real one."""

    def __init__(self, blobs: BlobService) -> None:
        self.blobs = blobs
        self.refused_sizes: set[int] = set()
        self.refused_releases: set[str] = set()
        self.puts_to_lose = 0
        self.is_lying = False

    def _stub(self) -> Any:
        return BlobServiceStub(self.blobs.peer.channel)

    def _token(self) -> str:
        minter = TokenMinter("transcript", self.blobs.keys / "transcript.pem")
        return minter.service_token(current_caller().tenant_id)

    async def PutBlob(self, request: blob_pb.PutBlobRequest, context: Any) -> Any:
        if len(request.data) in self.refused_sizes:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "refused")
        with acting_with_token(self._token()):
            answer = await self.blobs.peer.unary(self._stub().PutBlob, request)
        if self.puts_to_lose:  # It was put, and nobody hears of it.
            self.puts_to_lose -= 1
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return answer

    async def GetBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        with acting_with_token(self._token()):
            async for piece in self.blobs.peer.stream(self._stub().GetBlob, request, timeout_seconds=20):
                yield blob_pb.GetBlobResponse(data=piece.data[::-1]) if self.is_lying else piece

    async def ReleaseBlob(self, request: Any, context: Any) -> Any:
        if request.blob_id in self.refused_releases:
            raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "refused")
        with acting_with_token(self._token()):
            return await self.blobs.peer.unary(self._stub().ReleaseBlob, request)


@pytest.fixture
async def fickle(blobs: BlobService) -> _Fickle:
    return _Fickle(blobs)


@pytest.fixture
async def wavering(service: Service, cold: Cold, fickle: _Fickle, keys: Path) -> AsyncIterator[Cold]:
    """The session at a replica that has the fickle blob store."""

    @asynccontextmanager
    async def opened(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_BlobServiceServicer_to_server(fickle, server)
        yield server

    settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with served("attachment-blob", settings, opened) as target, replica(service, keys, target) as other:
        yield cold.at(other)


async def test_TierTranscript__what_was_appended_without_the_tier_is_brought_over(
    old: Cold, superuser: Superuser
) -> None:
    before = (await old.readings())["entries"]
    foretold = await old.tier(DRY_RUN)
    assert await count_rows(superuser, old, "payloads") == 0
    assert foretold["externalized_entry_count"] == foretold["cooled_entry_count"] == 4
    assert await old.tier(APPLY, page=2) == foretold
    assert await old.tier(APPLY) == await old.tier(DRY_RUN) == {}
    assert (await old.readings())["entries"] == before
    twin = old.to(old.session.sibling())
    await twin.session.create()
    await twin.fill()

    def shown(context: Any) -> list[str]:
        return [re.sub("file_[0-9a-z]{26}", "", text_of(entry)) for entry in context.entries]

    assert shown(await old.context(tail=NO_TAIL)) == shown(await twin.context(tail=NO_TAIL))


async def test_TierTranscript__a_call_looks_at_no_more_than_it_is_asked_to(old: Cold) -> None:
    first = await old.tier_once(APPLY, max_entry_count=5)
    assert (first.examined_entry_count, first.next_after_seq, first.done) == (5, 5, False)
    assert first.cooled_entry_count == 2
    rest = await old.tier_once(APPLY, after_seq=5)
    assert (rest.examined_entry_count, rest.next_after_seq, rest.done) == (4, 9, True)
    assert (await old.tier_once(APPLY, after_seq=9)).done


async def test_TierTranscript__what_is_fresh_stays_inline(cold: Cold, superuser: Superuser) -> None:
    claim = await cold.session.acquire(1)
    await cold.converse(claim, long_text("a"))
    await cold.session.append([assistant("end")], claim=claim)
    assert await cold.tier(APPLY) == await cold.tier(DRY_RUN) == {}
    assert await dropped(superuser, cold) == {}


async def test_TierTranscript__is_refused_where_the_tenant_does_not_want_it(filled: Cold) -> None:
    await filled.tier(APPLY)
    await filled.set_tier(2, is_on=False)
    with refused(Reason.TIER_DISABLED):
        await filled.tier(APPLY)
    assert await filled.tier(DRY_RUN) == {}
    assert (await filled.tier(REVERT))["reverted_entry_count"] == 4


async def test_TierTranscript__reverted_it_is_as_if_it_had_never_been(old: Cold, superuser: Superuser) -> None:
    before, stored = await old.readings(), await bodies(superuser, old)
    applied = await old.tier(APPLY)
    [file_id, *_] = [one.file_ids[0] for one in (await old.context(tail=NO_TAIL)).stubbed]
    reverted = await old.tier(REVERT, page=3)
    assert reverted == {"reverted_entry_count": 4, "reverted_bytes": applied["cooled_bytes"]}
    assert await old.tier(REVERT) == {}
    assert await bodies(superuser, old) == stored
    assert await count_rows(superuser, old, "payloads") == await count_rows(superuser, old, "stubs") == 0
    assert await asyncio.to_thread(old.blobs.object_keys) == []
    assert await old.readings() == before
    with refused(Reason.NOT_FOUND):
        await old.describe(file_id)
    assert await old.tier(APPLY) == applied


async def test_TierTranscript__apply_goes_on_from_wherever_it_was_cut_off(
    old: Cold, wavering: Cold, fickle: _Fickle, superuser: Superuser, database: Database
) -> None:
    before = (await old.readings())["entries"]
    foretold = await old.tier(DRY_RUN)
    fickle.puts_to_lose = 100
    failed = await wavering.tier(APPLY)  # Rows were written, blobs were put, and then it was cut off.
    assert (failed["failed_entry_count"], failed["failure_reason"]) == (4, "DEPENDENCY_UNAVAILABLE")
    await nothing_is_lost(old, superuser, before)
    fickle.puts_to_lose = 0
    async with asyncio.timeout(10):  # The contexts above have begun to make up for it.
        while await waiting(superuser, old):
            await asyncio.sleep(0.02)
    await nothing_is_lost(old, superuser, before)  # As cut off before any inline copy was dropped.
    assert await dropped(superuser, old) == {}
    applied = await old.tier(APPLY)
    assert applied["cooled_bytes"] == foretold["cooled_bytes"]
    await nothing_is_lost(old, superuser, before)


async def test_TierTranscript__rows_whose_blobs_were_never_put_are_gone_on_with(
    old: Cold, away: Cold, superuser: Superuser
) -> None:
    before = (await old.readings())["entries"]
    foretold = await old.tier(DRY_RUN)
    assert (await away.tier(APPLY))["failed_entry_count"] == 4
    assert await count_rows(superuser, old, "payloads") == 6
    assert (await old.session.entries())[0].seq == 1
    assert await old.tier(DRY_RUN) == foretold
    assert await old.tier(APPLY) == foretold
    await nothing_is_lost(old, superuser, before)


async def test_TierTranscript__revert_goes_on_from_wherever_it_was_cut_off(
    filled: Cold, superuser: Superuser, database: Database
) -> None:
    before = await filled.readings()
    bytes_before = [row[2] for row in await bodies(superuser, filled)]
    await filled.tier(APPLY)
    key = key_of(filled)
    # Behind the transaction that brings the inline copies back, before any blob is given up.
    whole = {seq: body for seq, body in enumerate(bytes_before, start=1) if seq in (2, 4)}
    assert set(await tier_store.warm_entries(database, key, dict(whole))) == {2, 4}
    await nothing_is_lost(filled, superuser, before["entries"])
    assert await filled.tier(APPLY) != {}, "what was begun to be reverted is brought to its end first"
    await nothing_is_lost(filled, superuser, before["entries"])

    # Behind the release of a blob, before its row is deleted.
    assert set(await tier_store.warm_entries(database, key, dict(whole))) == {2, 4}
    async with database.transaction(key.tenant_id) as connection:
        leaving = await tier_store.leaving_payloads(connection, key, row_count=100)
    for blob_id, _ in leaving:
        with acting_with_token(
            TokenMinter("transcript", filled.blobs.service.keys / "transcript.pem").service_token(key.tenant_id)
        ):
            stub: Any = BlobServiceStub(filled.blobs.service.peer.channel)
            await filled.blobs.service.peer.unary(stub.ReleaseBlob, blob_pb.ReleaseBlobRequest(blob_id=blob_id))
    await nothing_is_lost(filled, superuser, before["entries"])
    assert (await filled.tier(REVERT))["reverted_entry_count"] == 4
    assert await count_rows(superuser, filled, "payloads") == await count_rows(superuser, filled, "stubs") == 0
    assert await asyncio.to_thread(filled.blobs.object_keys) == []
    assert [row[2] for row in await bodies(superuser, filled)] == bytes_before


async def test_TierTranscript__counts_what_failed_and_a_repeat_does_the_rest(
    old: Cold, wavering: Cold, fickle: _Fickle, superuser: Superuser
) -> None:
    foretold = await old.tier(DRY_RUN)
    before = (await old.readings())["entries"]
    fickle.refused_sizes = {12_000}  # One of the two long results.
    applied = await wavering.tier(APPLY)
    assert applied["failed_entry_count"] == 1
    assert applied["cooled_entry_count"] == applied["externalized_entry_count"] == 3
    assert set(await dropped(superuser, old)) == {2, 4, 8}
    fickle.refused_sizes = set()
    rest = await wavering.tier(APPLY)
    assert rest["cooled_entry_count"] == rest["externalized_entry_count"] == 1
    assert applied["cooled_bytes"] + rest["cooled_bytes"] == foretold["cooled_bytes"]

    rows = await superuser.execute(
        "select blob_id from payloads where tenant_id = %s and seq = 8", (old.session.tenant_id,)
    )
    fickle.refused_releases = {(await rows.fetchall())[1][0]}
    reverted = await wavering.tier(REVERT)
    assert reverted["reverted_bytes"] == foretold["cooled_bytes"]
    assert reverted["reverted_entry_count"] + reverted["failed_entry_count"] == 4
    await nothing_is_lost(old, superuser, before)
    fickle.refused_releases = set()
    again = await wavering.tier(REVERT)
    assert again == {"reverted_entry_count": reverted["failed_entry_count"]}
    assert await asyncio.to_thread(old.blobs.object_keys) == []


class _GoneAfter:
    """A database that is away from the n-th transaction on."""

    def __init__(self, database: Database, transaction_count: int) -> None:
        self.database = database
        self.left = transaction_count

    def transaction(self, tenant_id: str) -> Any:
        self.left -= 1
        if self.left < 0:
            raise psycopg.OperationalError("away")
        return self.database.transaction(tenant_id)


async def test_TierTranscript__what_was_done_before_the_database_went_away_is_told(
    cold: Cold, database: Database
) -> None:
    claim = await cold.session.acquire(1)
    await cold.session.append([assistant("word") for _ in range(100)], claim=claim)
    async with (
        open_activities(database) as activities,
        open_payloads(database, cold.session.service.peer, activities) as payloads,
    ):
        for transaction_count in (0, 1, 2, 3):
            gone: Any = _GoneAfter(database, transaction_count)
            tiering = Tiering(gone, payloads, activities, CoolingMetrics(NoOpMeter("test")))
            tier = tiering.tier(key_of(cold), Action.DRY_RUN, after_seq=0, max_entry_count=1_000)
            if transaction_count < 2:
                with pytest.raises(psycopg.OperationalError):
                    await tier
                continue
            report = await tier
            told = (report.examined_entry_count, report.next_after_seq, report.done)
            assert told == ((64, 64, False) if transaction_count == 2 else (101, 101, True))


async def test_TierTranscript__revert_without_the_blob_store_changes_nothing(
    filled: Cold, away: Cold, superuser: Superuser
) -> None:
    before = await filled.readings()
    await filled.tier(APPLY)
    reverted = await away.tier(REVERT)
    assert reverted == {"failed_entry_count": 4, "failure_reason": "DEPENDENCY_UNAVAILABLE"}
    assert len(await dropped(superuser, filled)) == 4
    assert await filled.readings() == before


async def test_bytes_that_are_not_those_that_were_put_are_never_taken_for_them(
    filled: Cold, wavering: Cold, fickle: _Fickle, superuser: Superuser
) -> None:
    """Whatever the blob store makes of them itself."""
    fickle.is_lying = True
    failed = await wavering.tier(APPLY)
    assert failed == {"failed_entry_count": 4, "failure_reason": "STORED_HASH_DIFFERS"}
    assert await dropped(superuser, filled) == {}
    await filled.tier(APPLY)
    with refused(Reason.STORED_HASH_DIFFERS):
        await wavering.session.entries()
    assert await wavering.tier(REVERT) == failed
    assert len(await dropped(superuser, filled)) == 4


async def test_moves_of_what_others_moved_meanwhile_do_nothing(
    filled: Cold, superuser: Superuser, database: Database
) -> None:
    """Each is decided under the lock, by what there is then."""
    key = key_of(filled)
    async with database.transaction(key.tenant_id) as connection:
        kept = await tier_store.payloads_of_entries(connection, key, [4])
    [(_, _, whole)] = [row for row in await bodies(superuser, filled) if row[0] == 4]
    body = tier_store.ShorterBody(4, len(whole), [file.blob_id for file in kept[4]], whole[:100])
    other_blob = body._replace(blob_ids=["blb_" + "0" * 26])
    other_size = body._replace(whole_bytes=len(whole) + 1)
    for stale in (other_blob, other_size):
        assert await tier_store.cool_entries(database, key, [stale]) == {}
    assert await tier_store.warm_entries(database, key, {4: None}) == {4: 0}
    assert await tier_store.cool_entries(database, key, [body]) == {}, "its payload leaves"
    async with database.transaction(key.tenant_id) as connection:
        await payload_store.mark_stored(connection, key, body.blob_ids)
        assert await payload_store.read_payload(connection, key.tenant_id, body.blob_ids[0]) is None
    stub = Stub(4, None, 0, (), Vocabulary.O200K)
    assert await tier_store.keep_payloads(database, key, [stub], first_seq=0) == set()
    gone = replace(key, session_id="ses_" + "0" * 26)
    assert await tier_store.warm_entries(database, gone, {4: None}) == {}
    assert await dropped(superuser, filled) == {}


async def test_statements_about_tiers_cost_what_they_move_and_not_what_is_there(
    cold: Cold, superuser: Superuser, database: Database
) -> None:
    """Also when the planner was last told of short transcripts."""
    await superuser.execute("analyze entries")
    claim = await cold.session.acquire(1)
    for _ in range(8):
        await cold.session.append([assistant("word " * 50) for _ in range(250)], claim=claim)
    [seq, other] = await cold.converse(claim, long_text("a"), long_text("b"))
    for _ in range(4):
        await cold.session.append([assistant("word " * 50) for _ in range(250)], claim=claim)
    key = {"tenant_id": cold.session.tenant_id, "session_id": cold.session.session_id}
    async with database.transaction(key["tenant_id"]) as connection:
        kept = await tier_store.payloads_of_entries(connection, key_of(cold), [seq])
    [(_, _, whole)] = [row for row in await bodies(superuser, cold) if row[0] == seq]
    entries = [{"seq": seq, "whole_bytes": len(whole), "blob_ids": [kept[seq][0].blob_id]}]
    asked: dict[str, dict[str, Any]] = {
        "scan_sizes": {**key, "after_seq": seq, "row_count": 20},
        "kept_payloads": {**key, "first_seq": 1, "last_seq": 5_000},
        "payloads_of_entries": {**key, "seqs": [seq, other]},
        "inline_entries": {**key, "after_seq": 0, "last_seq": 5_000, "row_count": 16},
        "leaving_payloads": {**key, "seqs": None, "row_count": 32},
        "transcripts_to_cool": {"tenant_id": key["tenant_id"], "after_session_id": "", "row_count": 10},
        "transcripts_with_unsettled_payloads": {"tenant_id": key["tenant_id"], "after_session_id": "", "row_count": 10},
        "cool_entries": {**key, "entries": Jsonb(entries), "bodies": [whole[:100]]},
        "warm_entries": {**key, "seqs": [seq], "bodies": [whole]},
    }
    statements = load_statements("spawnmesh_transcript")
    for _ in range(7):
        with suppress(_RolledBack):
            async with database.transaction(key["tenant_id"]) as connection:
                await connection.execute(statements["keep_index_order"])
                touched = {name: await pages_touched(connection, statements[name], asked[name]) for name in asked}
                rows = await connection.execute(
                    "select is_leaving, is_inline from payloads where session_id = %(session_id)s and is_leaving", key
                )
                assert [[*row.values()] for row in await rows.fetchall()] == [[True, False]], (
                    "it was moved forth and back"
                )
                raise _RolledBack
        assert max(touched.values()) < 1_000, touched  # Of the catalog, while plans are made.
    assert max(touched.values()) < 100, touched
    assert await dropped(superuser, cold) == {}


class _RolledBack(Exception):
    """Ends a transaction."""
