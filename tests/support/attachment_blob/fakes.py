"""A second process of the service that tests can slow down or end between S3 and the database."""

import random
from asyncio import Event, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.request import urlopen

import psycopg
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.tenancy.v1.participant_settings_pb2 import ParticipantSettings
from spawnmesh_attachment_blob.app import build_dependencies, open_dependencies
from spawnmesh_attachment_blob.clients.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.domain.garbage import Ages
from spawnmesh_attachment_blob.operations.garbage_collector import GarbageCollector
from spawnmesh_attachment_blob.operations.garbage_metrics import GarbageMetrics
from spawnmesh_attachment_blob.operations.tenant_bucket import TenantBucket
from spawnmesh_attachment_blob.rpc.attach_set import attach_set
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.tenant_data import AttachmentTenants
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.tenant_participant import TenantParticipant
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.metrics import NO_METRICS

from tests.support.attachment_blob.fixtures import BlobService

AGES = Ages(grace_seconds=0, staged_seconds=3600, tombstone_seconds=24 * 3600)
"""Ages of the collectors in tests."""


class Killed(BaseException):
    """The process ends here: no later code of the service runs."""


class Life:
    """Counts the calls of S3 and the database, and ends the process at the chosen one."""

    def __init__(self, last_step: int | None = None) -> None:
        self.steps = 0
        self.last_step = last_step
        self.ended_at = ""

    def step(self, name: str) -> None:
        """Count a step. Raises Killed from the last step on."""
        self.steps += 1
        if self.steps == self.last_step:
            self.ended_at = name
        if self.ended_at:
            raise Killed(self.ended_at)

    async def pause(self) -> None:
        """Wait before a transaction that stages a set. Waits for nothing here."""


class Steps(Life):
    """Records the names of the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def step(self, name: str) -> None:
        self.names.append(name)
        super().step(name)


class MortalCalls(S3Calls):
    """Counts a step before and after each call of S3."""

    def __init__(self, calls: S3Calls, life: Life) -> None:
        super().__init__(calls._executor, calls._puts, calls._silence)
        self._life = life

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._life.step(f"before {function.__name__}")
        result = await super().call(function, *args, **kwargs)
        self._life.step(f"behind {function.__name__}")
        return result

    async def put(self, *args: Any) -> None:
        self._life.step("before put")
        await super().put(*args)
        self._life.step("behind put")


class MortalDatabase(Database):
    """Counts a step before each transaction, before its commit and after it."""

    def __init__(self, database: Database, life: Life) -> None:
        super().__init__(database.connections)
        self._life = life

    @asynccontextmanager
    async def transaction(self, tenant_id: str) -> AsyncIterator[Connection]:
        self._life.step("before a transaction")
        async with super().transaction(tenant_id) as connection:
            yield connection
            self._life.step("before a commit")
        self._life.step("behind a commit")

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, *call: Any
    ) -> AsyncIterator[tuple[Connection, list[list[Row]]]]:
        self._life.step("before a transaction")
        await self._life.pause()
        async with super().transaction_with_statements(tenant_id, *call) as begun:
            self._life.step("behind its first statement")
            yield begun
            self._life.step("before a commit")
        self._life.step("behind a commit")


FILES = [InlineItem("a", "A", Encoding.UTF8), InlineItem("b", "B", Encoding.UTF8)]
"""Two inline items."""


class KilledAfterPut(ObjectStore):
    """Ends the process after the puts."""

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        await super().put_all(tenant_id, data_by_key)
        raise Killed


class PausedPuts(ObjectStore):
    """Pauses `put_all` after some or all objects, then continues or fails as the test says."""

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
    """Runs `meanwhile` before a staging transaction, or loses the connection behind its commit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.connections)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.is_lost_behind = False

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, *call: Any
    ) -> AsyncIterator[tuple[Connection, list[list[Row]]]]:
        if self.meanwhile is not None:
            await self.meanwhile()
        async with super().transaction_with_statements(tenant_id, *call) as begun:
            yield begun
        if self.is_lost_behind:
            self.is_lost_behind = False
            raise psycopg.OperationalError("the connection is lost")


class Slow(Life):
    """Waits for a random time before a set is staged, so that what it was validated with changes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    async def pause(self) -> None:
        await sleep(self._rng.choice((0, 0.005, 0.02)))


class SlowObjects(ObjectStore):
    """Waits for a random time around each operation, so that calls interleave."""

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


async def waits_for_a_lock(postgres: Postgres, count: int = 1) -> bool:
    """Return whether at least `count` connections of the service wait for a lock."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where usename = 'attachment_blob' and wait_event_type = 'Lock'"
        )
        row = await cursor.fetchone()
        return row is not None and bool(row[0] >= count)


@asynccontextmanager
async def open_second_process(
    service: BlobService, *, life: Life | None = None, objects_kind: type[ObjectStore] = ObjectStore
) -> AsyncIterator[Dependencies]:
    """Open the dependencies of a second process, without a grace period."""
    lived = life or Life()
    async with open_dependencies(service.settings) as on:
        database, calls = MortalDatabase(on.database, lived), MortalCalls(on.calls, lived)
        objects = objects_kind(on.buckets, calls)
        deps = build_dependencies(service.settings, database, calls, on.buckets, objects)
        yield replace(deps, collector=collector_of(deps))


def collector_of(deps: Dependencies, **more: Any) -> GarbageCollector:
    """Build a collector without a grace period on these dependencies; `more` replaces arguments."""
    arguments: dict[str, Any] = {
        "database": deps.database,
        "objects": deps.objects,
        "multiparts": deps.multiparts,
        "releaser": deps.releaser,
        "upload_remover": deps.upload_remover,
        "ages": AGES,
        "metrics": GarbageMetrics(NO_METRICS.meter),
    }
    return GarbageCollector(**{**arguments, **more})


async def attach(deps: Dependencies, tenant_id: str, set_id: str) -> None:
    """Call AttachSet as the session service does."""
    caller = Caller(CallerKind.SERVICE, "session", tenant_id, service="session")
    await attach_set(pb.AttachSetRequest(set_id=set_id), caller, deps)


def participant_of(deps: Dependencies, **more: Any) -> TenantParticipant:
    """Build the participant on these dependencies; `more` replaces some of them."""
    on = replace(deps, **more)
    bucket = TenantBucket(on.objects, on.multiparts, on.buckets, on.calls)
    return TenantParticipant(on.database, AttachmentTenants(bucket))


async def prepare(participant: TenantParticipant, tenant_id: str, version: int) -> int:
    """Prepare the tenant as PrepareTenant does."""
    limits = pb.AttachmentLimits(
        enabled=True, max_file_count=50, max_file_bytes=1024**2, max_total_bytes=5 * 1024**2
    )
    return await participant.prepare(tenant_id, version, ParticipantSettings(attachments=limits))


async def skip_other_tenants(postgres: Postgres) -> None:
    """Mark the tenants of earlier tests as collected in this interval. There may be hundreds."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn) as superuser:
        await superuser.execute("update attachment_blob.tenant_work set collect_time = now()")


def metric_samples(port: int | None) -> dict[str, float]:
    """Return the samples of the Prometheus endpoint, by name and labels."""
    lines = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }
