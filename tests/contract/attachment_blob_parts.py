"""The parts of the service, put together as a process of its own that may be slow at S3 or end at any step between S3 and the database."""

import random
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.collecting import Collecting
from spawnmesh_attachment_blob.collection_metrics import CollectionMetrics
from spawnmesh_attachment_blob.multiparts import Multiparts
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import S3Calls
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.upload_parts import UploadParts
from spawnmesh_attachment_blob.upload_removal import UploadRemoval
from spawnmesh_attachment_blob.uploading import Uploading
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.metrics import NO_METRICS

from tests.contract.attachment_blob_fixtures import BlobService


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
        super().__init__(database._pool)
        self._life = life

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        self._life.step("before a transaction")
        async with super().transaction(tenant_id) as connection:
            yield connection
            self._life.step("before a commit")
        self._life.step("behind a commit")

    async def call(self, tenant_id: str, statement: str, parameters: Mapping[str, Any]) -> Any:
        self._life.step("before a call")
        rows = await super().call(tenant_id, statement, parameters)
        self._life.step("behind a call")
        return rows


class SlowObjects(ObjectStore):
    """Takes its time around what it does, by the seed's choice, so that others get in between."""

    rng = random.Random()

    async def _pause(self) -> None:
        await sleep(self.rng.choice((0, 0, 0.001, 0.004)))

    async def put_all(self, tenant_id: str, data_by_hash: Mapping[str, bytes]) -> None:
        await self._pause()
        await super().put_all(tenant_id, data_by_hash)
        await self._pause()

    async def delete_all(self, tenant_id: str, keys: Any) -> None:
        await self._pause()
        await super().delete_all(tenant_id, keys)
        await self._pause()


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
            Staging(database, objects, on.turns, removal),
            Attaching(database),
            removal,
            Reading(database, objects),
            Uploading(
                database, UploadParts(database, objects, multiparts, upload_removal, ttl_seconds), service.settings
            ),
            Collecting(database, objects, multiparts, removal, upload_removal, 0, CollectionMetrics(NO_METRICS.meter)),
        )
