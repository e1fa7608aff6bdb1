"""The parts of the service, put together as a process of its own that may be slow at S3 or end at any step between S3 and the database."""

import random
from asyncio import Event, sleep, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from psycopg.rows import DictRow
from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.collecting import Collecting
from spawnmesh_attachment_blob.collection_metrics import CollectionMetrics
from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.domain.garbage import Ages
from spawnmesh_attachment_blob.multiparts import Multiparts
from spawnmesh_attachment_blob.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import S3Calls
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.upload_parts import UploadParts
from spawnmesh_attachment_blob.upload_removal import UploadRemoval
from spawnmesh_attachment_blob.uploading import Uploading
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.metrics import NO_METRICS

from tests.contract.attachment_blob_fixtures import BlobService

AGES = Ages(grace_seconds=0, staged_seconds=3600, tombstone_seconds=24 * 3600)
"""At which the collectors of tests take things."""


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours runs after it."""


class Life:
    """Counts steps at the edges of S3 and the database, and ends at the one that was chosen; from then on nothing gets through."""

    def __init__(self, last_step: int | None = None) -> None:
        self.steps = 0
        self.last_step = last_step
        self.ended_at = ""

    def step(self, name: str) -> None:
        """Raises Killed from the last step on."""
        self.steps += 1
        if self.steps == self.last_step:
            self.ended_at = name
        if self.ended_at:
            raise Killed(self.ended_at)


class MortalCalls(S3Calls):
    """Has a step before and behind each call of S3."""

    def __init__(self, calls: S3Calls, life: Life) -> None:
        super().__init__(calls._executor, calls._puts)
        self._life = life

    async def run(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._life.step(f"before {call.__name__}")
        result = await super().run(call, *args, **kwargs)
        self._life.step(f"behind {call.__name__}")
        return result

    async def put(self, *args: Any) -> None:
        self._life.step("before put")
        await super().put(*args)
        self._life.step("behind put")


class MortalDatabase(Database):
    """Has a step before each transaction, before its commit and behind it."""

    def __init__(self, database: Database, life: Life) -> None:
        super().__init__(database._pool, database._metrics)
        self._life = life

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        self._life.step("before a transaction")
        async with super().transaction(tenant_id) as connection:
            yield connection
            self._life.step("before a commit")
        self._life.step("behind a commit")

    @asynccontextmanager
    async def transaction_of(self, tenant_id: str, *call: Any) -> AsyncIterator[tuple[Connection, list[DictRow]]]:
        self._life.step("before a transaction")
        async with super().transaction_of(tenant_id, *call) as begun:
            self._life.step("behind its first statement")
            yield begun
            self._life.step("before a commit")
        self._life.step("behind a commit")


class PausedPuts(ObjectStore):
    """Stops when some of the objects are put, or all, and goes on, or fails, when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.were_put = Event()
        self.go_on = Event()
        self.put_hashes: set[str] = set()
        self.puts_before: int | None = None
        self.fails = False

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        self.put_hashes |= {hash_of_key(key) for key in data_by_key}
        before = dict(islice(data_by_key.items(), self.puts_before))
        await super().put_all(tenant_id, before)
        self.were_put.set()
        await self.go_on.wait()
        if self.fails:
            raise NotAllPut(frozenset())
        await super().put_all(tenant_id, {key: data_by_key[key] for key in data_by_key.keys() - before})


class BreakingDatabase(Database):
    """Has something happen before a transaction that stages, and loses its connection at the commit of one."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool, database._metrics)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.is_lost_before = self.is_lost_behind = False

    @asynccontextmanager
    async def transaction_of(self, tenant_id: str, *call: Any) -> AsyncIterator[tuple[Connection, list[DictRow]]]:
        if self.meanwhile is not None:
            await self.meanwhile()
        async with super().transaction_of(tenant_id, *call) as begun:
            yield begun
            if self.is_lost_before:
                self.is_lost_before = False
                await begun[0].close()
        if self.is_lost_behind:
            self.is_lost_behind = False
            raise psycopg.OperationalError("the connection is lost")


class SlowObjects(ObjectStore):
    """Takes its time around what it does, by the seed's choice, so that others get in between."""

    rng = random.Random()

    async def _pause(self) -> None:
        await sleep(self.rng.choice((0, 0, 0.001, 0.004)))

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        await self._pause()
        await super().put_all(tenant_id, data_by_key)
        await self._pause()

    async def delete_all(self, tenant_id: str, keys: Any) -> None:
        await self._pause()
        await super().delete_all(tenant_id, keys)
        await self._pause()


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Returns once it holds. Raises TimeoutError."""
    async with timeout(seconds):
        while not await holds():
            await sleep(0.01)


async def waits_for_a_lock(postgres: Postgres, count: int = 1) -> bool:
    """Whether so many connections of the service wait for other ones' locks."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity where usename = 'attachment_blob' and wait_event_type = 'Lock'"
        )
        row = await cursor.fetchone()
        return row is not None and bool(row[0] >= count)


@dataclass(frozen=True)
class ServiceParts:
    """What works behind the RPCs."""

    staging: Staging
    attaching: Attaching
    removal: Removal
    reading: Reading
    uploading: Uploading
    collecting: Collecting


@asynccontextmanager
async def open_parts(
    service: BlobService, *, life: Life | None = None, objects_kind: type[ObjectStore] = ObjectStore
) -> AsyncIterator[ServiceParts]:
    """A second process as it were, without a grace period."""
    lived = life or Life()
    async with open_stores(service.settings) as on:
        database, calls = MortalDatabase(on.database, lived), MortalCalls(on.calls, lived)
        objects, multiparts = objects_kind(on.buckets, calls), Multiparts(on.buckets, calls)
        removal = Removal(database, objects, on.turns)
        upload_removal = UploadRemoval(database, objects, multiparts, removal)
        ttl_seconds = service.settings.upload_ttl_seconds
        yield ServiceParts(
            Staging(database, objects, on.turns, removal, max_bytes=service.settings.stage_max_bytes),
            Attaching(database),
            removal,
            Reading(database, objects, max_streams=32, idle_seconds=30),
            Uploading(
                database, UploadParts(database, objects, multiparts, upload_removal, ttl_seconds), service.settings
            ),
            Collecting(
                database, objects, multiparts, removal, upload_removal, AGES, CollectionMetrics(NO_METRICS.meter)
            ),
        )
