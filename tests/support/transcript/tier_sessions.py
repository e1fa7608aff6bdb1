"""Transcripts with payloads that only the blob store has, and every RPC that reads them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import assistant, text_block
from tests.support.transcript.chains import check_chain
from tests.support.transcript.files import exported
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.operating import idle_worker
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, Tiered, answering, calling, image_block, long_text

DRY_RUN, APPLY, REVERT = pb.TIER_ACTION_DRY_RUN, pb.TIER_ACTION_APPLY, pb.TIER_ACTION_REVERT
PICTURE = hashlib.shake_128(b"picture").digest(20_000)


@dataclass(frozen=True)
class TierSession(Tiered):
    """A tiered session, and the RPCs that move its payloads."""

    async def tier(self, action: pb.TierAction.ValueType) -> dict[str, Any]:
        """Run an operation, and return the counts of its response that are not zero."""
        response = await self.run_tier(action)
        return {
            field.name: value
            for field, value in response.ListFields()
            if field.name != "examined_entry_count"
        }

    async def sizes(self, page_size: int = 0) -> list[pb.TranscriptSize]:
        """Return the sizes of all pages."""
        request = pb.ListTranscriptsRequest(page_size=page_size)
        peer = self.session.service.peer
        found: list[pb.TranscriptSize] = []
        with use_token(self.session.client_token()):
            while True:
                page = await peer.unary(
                    StorageServiceStub(peer.channel).ListTranscripts, request, timeout_seconds=60
                )
                found += page.transcripts
                if not page.next_page_token:
                    return found
                request.page_token = page.next_page_token

    async def size(self) -> pb.TranscriptSize:
        return next(one for one in await self.sizes() if one.session_id == self.session.session_id)

    async def search(self, **asked: Any) -> list[search_pb.SearchHit]:
        request = search_pb.SearchEntriesRequest(session_id=self.session.session_id, **asked)
        peer = self.session.service.peer
        with use_token(self.session.client_token()):
            return list(
                (
                    await peer.unary(
                        SearchServiceStub(peer.channel).SearchEntries, request, timeout_seconds=60
                    )
                ).hits
            )

    def at(self, service: Service) -> "TierSession":
        """Return the same session at another replica."""
        return replace(self, session=replace(self.session, service=service))

    def to(self, session: Session) -> "TierSession":
        return replace(self, session=session)

    async def fill(self) -> None:
        """Append payloads of every kind, and so much behind them that none of them is fresh."""
        claim = await self.session.acquire(1)
        await self.session.append([with_image("look", PICTURE)])
        await self.converse(claim, long_text("alpha"), long_text("beta", 12_000), path="/x")
        several = answering("c9", long_text("gamma", 5_000), "short", long_text("delta", 6_000))
        several.message.content.append(image_block(PICTURE[:9_000]))
        await self.session.append([calling("c9", "look", {}), several], claim=claim)
        await self.age(claim)

    async def age(self, claim: Any) -> None:
        """Append until none of the present entries is fresh."""
        await self.session.append([assistant("word " * 40_000)], claim=claim)

    async def followed(self) -> list[entry_pb2.Entry]:
        """Return the entries that a new follower receives at once."""
        request = transcript_pb.FollowEntriesRequest(session_id=self.session.session_id)
        source = self.session.service.peer
        found: list[entry_pb2.Entry] = []
        with use_token(self.session.client_token()):
            answers = source.stream(self.session.service.stub.FollowEntries, request, timeout_seconds=60)
            async with aclosing(answers):
                async for answer in answers:
                    found += answer.entries
                    if answer.read_seq >= answer.head.seq:
                        break
        return found

    async def readings(self) -> dict[str, Any]:
        """Return the answer of every RPC that reads the transcript."""
        entries = await self.session.entries()
        assert await self.followed() == entries
        check_chain(entries)
        return {
            "entries": [entry.SerializeToString(deterministic=True) for entry in entries],
            "export": await exported(self.session),
            "context": _bytes(await self.context()),
            "context without a tail": _bytes(await self.context(tail=NO_TAIL)),
            "a small context": _bytes(await self.context(50_000, tail=NO_TAIL)),
            "words": [
                hit.SerializeToString(deterministic=True) for hit in await self.search(words="alpha17")
            ],
            "pattern": [
                hit.SerializeToString(deterministic=True) for hit in await self.search(pattern="delta[0-9]9")
            ],
        }


def with_image(
    text: str, *images: bytes, role: content_pb.Role.ValueType = content_pb.ROLE_USER
) -> entry_pb2.EntryBody:
    """Return a message with images."""
    blocks = [text_block(text), *(image_block(data) for data in images)]
    return entry_pb2.EntryBody(message=content_pb.Message(role=role, content=blocks))


async def dropped(superuser: Superuser, tier_session: Tiered) -> dict[int, int]:
    """Return the dropped bytes by seq, and check that the transcript's row has their sum."""
    key = (tier_session.session.tenant_id, tier_session.session.session_id)
    rows = await (
        await superuser.execute(
            "select seq, dropped_bytes from entries"
            " where (tenant_id, session_id) = (%s, %s) and dropped_bytes > 0 order by seq",
            key,
        )
    ).fetchall()
    [(total, logical, stored)] = await (
        await superuser.execute(
            """
            select t.dropped_bytes, t.logical_bytes, sum(octet_length(e.body))
            from transcripts t join entries e using (tenant_id, session_id)
            where (t.tenant_id, t.session_id) = (%s, %s) group by t.dropped_bytes, t.logical_bytes
            """,
            key,
        )
    ).fetchall()
    assert total == sum(size for _, size in rows)
    assert logical - total == stored
    return dict(rows)


async def count_rows(superuser: Superuser, tier_session: Tiered, table: str) -> int:
    statement = f"select count(*) from {table} where tenant_id = %s"
    [(count,)] = await (await superuser.execute(statement, (tier_session.session.tenant_id,))).fetchall()
    return int(count)


@pytest.fixture
async def tier_session(tiered: Tiered) -> TierSession:
    """A session with an empty transcript, of a new tenant with the stub tier."""
    return TierSession(tiered.session, tiered.blobs)


@pytest.fixture
async def filled(tier_session: TierSession) -> TierSession:
    """A session with payloads of every kind, none of them fresh, all of them inline."""
    await tier_session.fill()
    return tier_session


@asynccontextmanager
async def replica(service: Service, keys: Path, blob_target: str) -> AsyncIterator[Service]:
    """Open another replica, which uses another blob store."""
    settings = TranscriptSettings(
        **shared_settings("transcript", keys),
        database_url=service.dsn.app,
        attachment_blob_target=blob_target,
    )
    async with (
        served("transcript", settings, open_service) as target,
        caller_at(target, "transcript") as peer,
        idle_worker(settings) as jobs,
    ):
        yield replace(service, peer=peer, target=target, jobs=jobs)


@pytest.fixture
async def away(service: Service, tier_session: TierSession, keys: Path) -> AsyncIterator[TierSession]:
    """The same session at a replica whose blob store is unavailable."""
    async with replica(service, keys, "127.0.0.1:1") as other:
        yield tier_session.at(other)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="test", max_connections=4) as database:
        yield database


@pytest.fixture
async def old(tier_session: TierSession) -> TierSession:
    """A session whose large results were appended before its tenant had the stub tier."""
    await tier_session.set_tier(2, is_on=False)
    await tier_session.fill()
    await tier_session.set_tier(3, is_on=True)
    return tier_session


def key_of(tier_session: TierSession) -> Key:
    return Key(tier_session.session.tenant_id, tier_session.session.session_id)


async def bodies(superuser: Superuser, tier_session: TierSession) -> list[tuple[Any, ...]]:
    statement = (
        "select seq, dropped_bytes, body from entries where (tenant_id, session_id) = (%s, %s) order by seq"
    )
    return await (
        await superuser.execute(statement, (tier_session.session.tenant_id, tier_session.session.session_id))
    ).fetchall()


async def waiting(superuser: Superuser, tier_session: TierSession) -> int:
    """Return the number of payloads that the blob store may not have."""
    rows = await superuser.execute(
        "select count(*) from payloads where tenant_id = %s and not is_stored",
        (tier_session.session.tenant_id,),
    )
    [(count,)] = await rows.fetchall()
    return int(count)


async def nothing_is_lost(tier_session: TierSession, superuser: Superuser, entries: list[bytes]) -> None:
    """Check that readers get the same answers, that every reference resolves, and that the blob
    store has exactly the blobs that rows name."""
    assert (await tier_session.readings())["entries"] == entries
    for stubbed in (await tier_session.context(tail=NO_TAIL)).stubbed:
        for file_id in stubbed.file_ids:
            assert (await tier_session.describe(file_id, expand=True)).content.data
    rows = await superuser.execute(
        "select count(distinct sha256) from payloads where tenant_id = %s", (tier_session.session.tenant_id,)
    )
    [(named,)] = await rows.fetchall()
    await tier_session.blobs.collect()
    assert len(await asyncio.to_thread(tier_session.blobs.object_keys)) <= named
