"""The attachment-blob service on PostgreSQL and S3, its tenants, and an administrator of S3."""

import io
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import urllib3
from google.longrunning.operations_pb2 import Operation
from google.protobuf.duration_pb2 import Duration
from minio import Minio
from pydantic import SecretStr
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.operations.v1 import operation_service_pb2 as operation_pb
from spawnmesh.operations.v1.operation_service_pb2_grpc import OperationServiceStub
from spawnmesh_attachment_blob.app import build_dependencies, open_service, open_worker
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import http_pool, open_s3_calls
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.sets import SetToStage, object_key
from spawnmesh_attachment_blob.domain.staging import WrittenSet
from spawnmesh_attachment_blob.operations.set_stager import SetStager
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.store import sets
from spawnmesh_calls.wire_errors import error_of_status
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.long_running.store import JOB_KIND
from spawnmesh_postgres.statement_batches import execute_batch
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.tokens import TokenMinter

from tests.support import tenancy
from tests.support.postgres.migrating import migrate_once
from tests.support.serving import caller_at, client_tokens, served, shared_settings

TABLES = ("attachment_tenants", "sets", "set_files", "blobs", "uploads", "upload_parts")
KIB = 1024


def key_of_hash(sha256: str, suffix: str = "0123") -> str:
    """Return a key that the service could have chosen for an object with this hash."""
    return object_key(sha256, suffix)


def new_set_id() -> str:
    """Return a new set id."""
    return new_id(IdKind.ATTACHMENT_SET)


@contextmanager
def refused(reason: Reason, **facts: str) -> Iterator[list[MeshError]]:
    """Expect an error with this reason and at least these facts. The list receives the error."""
    caught: list[MeshError] = []
    with pytest.raises(MeshError) as raised:
        yield caught
    assert (raised.value.reason, raised.value.domain) == (reason, "attachment-blob.spawnmesh")
    assert facts.items() <= raised.value.facts.items()
    caught.append(raised.value)


@dataclass(frozen=True)
class BlobService:
    """The running service, its database, and the administrator's client of its S3."""

    peer: Peer
    keys: Path
    settings: AttachmentBlobSettings
    database: Database
    admin: Minio
    target: str
    jobs: JobWorker
    """It carries operations when a test calls it."""

    def tenant(self) -> "Tenant":
        return Tenant(self)


@dataclass(frozen=True)
class Tenant:
    """A tenant of one test, as the session service, its clients and its runs see it."""

    service: BlobService
    tenant_id: str = field(default_factory=lambda: f"t-{secrets.token_hex(8)}")

    @property
    def stub(self) -> Any:
        return AttachmentBlobServiceStub(self.service.peer.channel)

    @property
    def bucket(self) -> str:
        return f"spawnmesh-{self.tenant_id}"

    def service_token(self) -> str:
        return TokenMinter("session", self.service.keys / "session.pem").service_token(self.tenant_id)

    def client_token(self) -> str:
        return client_tokens(self.service.keys).client_token(self.tenant_id, "tester", 300)

    def admin_token(self) -> str:
        return client_tokens(self.service.keys).admin_token("operator", 300)

    def run_token(self, session_id: str) -> str:
        minter = TokenMinter("session", self.service.keys / "session.pem")
        return minter.run_token(self.tenant_id, session_id, new_id(IdKind.RUN), 1, 300)

    async def call(self, method: str, request: Any, *, token: str = "", timeout_seconds: float = 60.0) -> Any:
        with use_token(token or self.service_token()):
            return await self.service.peer.unary(
                getattr(self.stub, method), request, timeout_seconds=timeout_seconds
            )

    async def prepare(self, version: int = 1, **limits: Any) -> int:
        defaults = {
            "enabled": True,
            "max_file_count": 50,
            "max_file_bytes": 1024 * KIB,
            "max_total_bytes": 5 * 1024 * KIB,
        }
        given = pb.AttachmentLimits(**{**defaults, **limits})
        with use_token(self.service_token()):
            return await tenancy.prepare(self.service.peer, version, attachments=given)

    async def purge(self, version: int = 0, *, token: str = "") -> tenancy.Purged:
        """Call PurgeTenant once."""
        with use_token(token or self.service_token()):
            return await tenancy.purge(self.service.peer, version)

    async def stage(
        self, *items: attachment_pb2.InlineAttachment, set_id: str = "", session_id: str = "", **options: Any
    ) -> attachment_pb2.AttachmentSet:
        request = pb.StageSetRequest(
            set_id=set_id or new_set_id(), session_id=session_id or new_id(IdKind.SESSION), items=items
        )
        answer: pb.StageSetResponse = await self.call("StageSet", request, **options)
        return answer.set

    async def attach(self, set_id: str) -> attachment_pb2.AttachmentSet:
        answer: pb.AttachSetResponse = await self.call("AttachSet", pb.AttachSetRequest(set_id=set_id))
        return answer.set

    async def release(self, set_id: str, **options: Any) -> int:
        answer: pb.ReleaseSetResponse = await self.call(
            "ReleaseSet", pb.ReleaseSetRequest(set_id=set_id), **options
        )
        return answer.deleted_object_count

    async def get(self, set_id: str, *, token: str = "") -> attachment_pb2.AttachmentSet:
        answer: pb.GetSetResponse = await self.call(
            "GetSet", pb.GetSetRequest(set_id=set_id), token=token or self.client_token()
        )
        return answer.set

    async def pieces(
        self, set_id: str, name: str, *, token: str = "", into: list[bytes] | None = None, **span: int
    ) -> list[bytes]:
        """Return the pieces of a file or of a range. `into` receives them as they arrive."""
        pieces = [] if into is None else into
        request = pb.ReadFileRequest(set_id=set_id, name=name, **span)
        with use_token(token or self.client_token()):
            async for piece in self.service.peer.stream(self.stub.ReadFile, request, timeout_seconds=120):
                pieces.append(piece.data)
        return pieces

    async def read(self, set_id: str, name: str, *, token: str = "", **span: int) -> bytes:
        return b"".join(await self.pieces(set_id, name, token=token, **span))

    async def collect(self, *, dry_run: bool = False) -> dict[str, int]:
        """Collect garbage and return the counts that are not zero, without `seen_object_count`."""
        counts = await self.result_of(await self.start_collection(dry_run=dry_run))
        return {
            field.name: value for field, value in counts.ListFields() if field.name != "seen_object_count"
        }

    async def start_collection(
        self, *, dry_run: bool = False, request_id: str = "", token: str = ""
    ) -> Operation:
        """Start an operation as an operator of the mesh."""
        request = pb.CollectGarbageRequest(
            tenant_id=self.tenant_id, dry_run=dry_run, request_id=request_id or secrets.token_hex(8)
        )
        started: Operation = await self.call("CollectGarbage", request, token=token or self.admin_token())
        return started

    async def call_operations(self, method: str, request: Any, *, token: str = "") -> Any:
        """Call an RPC of OperationService as an operator of the mesh."""
        peer = self.service.peer
        with use_token(token or self.admin_token()):
            return await peer.unary(
                getattr(OperationServiceStub(peer.channel), method), request, timeout_seconds=60
            )

    async def result_of(self, started: Operation) -> pb.GarbageCounts:
        """Carry the operation until it is done, and return its counts, or raise its error."""
        request = operation_pb.WaitOperationRequest(name=started.name, timeout=Duration(seconds=60))
        operation = started
        while not operation.done:
            await self.service.jobs.run_due(JOB_KIND)
            operation = await self.call_operations("WaitOperation", request)
        if operation.HasField("error"):
            raise error_of_status(operation.error)
        response = pb.CollectGarbageResponse()
        assert operation.response.Unpack(response)
        return response.counts

    def object_keys(self) -> list[str]:
        """Return the keys of the tenant's objects, with the administrator's client."""
        found = self.service.admin.list_objects(self.bucket, recursive=True)
        return sorted(str(entry.object_name) for entry in found)

    def key_of(self, sha256: str) -> str:
        """Return the key of the only object with this hash."""
        (key,) = (key for key in self.object_keys() if hash_of_key(key) == sha256)
        return key

    def unfinished_multiparts(self) -> list[str]:
        """Return the keys of unfinished multipart uploads, with the administrator's client."""
        found = self.service.admin._list_multipart_uploads(self.bucket)
        return [upload.object_name for upload in found.uploads]

    def put(self, key: str, data: bytes) -> None:
        """Put an object without the service."""
        self.service.admin.put_object(self.bucket, key, io.BytesIO(data), len(data))

    def overwrite(self, sha256: str, data: bytes) -> None:
        """Overwrite stored bytes without the service."""
        self.put(self.key_of(sha256), data)

    def lose(self, sha256: str) -> None:
        """Delete stored bytes without the service."""
        self.service.admin.remove_object(self.bucket, self.key_of(sha256))

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows that a transaction of the tenant sees, in the order of their keys.

        The statement names no tenant.
        """
        async with self.service.database.transaction(self.tenant_id) as connection:
            return await (await connection.execute(f"select * from {table} order by 1, 2, 3")).fetchall()

    async def recount(self) -> None:
        """Set the counters to what the rows have, which the test has changed by SQL."""
        async with self.service.database.transaction(self.tenant_id) as connection:
            await connection.execute(
                "update attachment_tenants set"
                " stored_bytes = (select coalesce(sum(size_bytes), 0) from blobs where state = 'STORED'),"
                " uploading_bytes ="
                " (select coalesce(sum(size_bytes), 0) from uploads where state <> 'COMPLETE')"
            )

    async def left(self) -> tuple[int, int, int]:
        """Return the numbers of set files, blobs and objects."""
        return len(await self.rows("set_files")), len(await self.rows("blobs")), len(self.object_keys())


def admin_of(endpoint: S3Endpoint, http: urllib3.PoolManager) -> Minio:
    """Return a client with the administrator's keys."""
    return Minio(
        endpoint.endpoint,
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        secure=False,
        region=endpoint.region,
        http_client=http,
    )


@asynccontextmanager
async def open_blob_service(
    dsn: ServiceDsn, endpoint: S3Endpoint, keys: Path, **more: Any
) -> AsyncIterator[BlobService]:
    """Migrate the database and serve."""
    migrate_once(dsn.owner, "attachment_blob")
    settings = AttachmentBlobSettings(
        **shared_settings("attachment-blob", keys),
        **more,
        database_url=dsn.app,
        s3_endpoint=endpoint.endpoint,
        s3_access_key=SecretStr(endpoint.access_key),
        s3_secret_key=SecretStr(endpoint.secret_key),
        s3_region=endpoint.region,
        sts_endpoint=endpoint.sts_endpoint,
        sts_role_arn=endpoint.role_arn,
    )
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(served("attachment-blob", settings, open_service))
        peer = await stack.enter_async_context(caller_at(target, "attachment-blob"))
        database = await stack.enter_async_context(open_database(dsn.app, name="test", max_connections=8))
        http = stack.enter_context(urllib3.PoolManager(timeout=60, retries=False))
        process = await stack.enter_async_context(start_process("attachment-blob", settings))
        worker = await stack.enter_async_context(open_worker(process, settings))
        yield BlobService(peer, keys, settings, database, admin_of(endpoint, http), target, worker.jobs)


@pytest.fixture(scope="module")
async def blobs(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service with default settings."""
    async with open_blob_service(databases["attachment_blob"], s3, keys) as service:
        yield service


@pytest.fixture
async def tenant(blobs: BlobService) -> AsyncIterator[Tenant]:
    """A prepared tenant. After the test its storage is what its rows have."""
    tenant = blobs.tenant()
    await tenant.prepare()
    yield tenant
    for row in await tenant.rows("attachment_tenants"):
        stored = sum(blob["size_bytes"] for blob in await tenant.rows("blobs") if blob["state"] == "STORED")
        uploading = sum(
            upload["size_bytes"] for upload in await tenant.rows("uploads") if upload["state"] != "COMPLETE"
        )
        assert (row["stored_bytes"], row["uploading_bytes"]) == (stored, uploading)


async def stage_within(connection: Connection, tenant_id: str, *files: StoredFile) -> frozenset[str]:
    """Stage a new set in the open transaction and return the hashes to put."""
    requested = SetToStage(
        new_set_id(), new_id(IdKind.SESSION), files, {file.sha256: b"" for file in files}, "suffix"
    )
    database: Any = _OpenTransaction(connection)
    async with sets.stage_set(database, tenant_id, AttachmentLimits(), requested) as (_, written):
        assert isinstance(written, WrittenSet)
        return written.unstored


class _OpenTransaction:
    """A database that uses the open transaction instead of a new one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def transaction_with_statements(
        self, tenant_id: str, statements: Sequence[str], parameters: dict[str, Any]
    ) -> AsyncIterator[tuple[Connection, list[Any]]]:
        yield self._connection, await execute_batch(self._connection, statements, parameters)


@asynccontextmanager
async def open_stager(
    service: BlobService, kind: type[ObjectStore] = ObjectStore, database: Database | None = None
) -> AsyncIterator[tuple[SetStager, Any]]:
    """Open a stager with this kind of object store, as a second process would have it."""
    database = database or service.database
    with http_pool(service.settings) as http:
        async with open_s3_calls(service.settings) as calls:
            buckets = TenantBuckets(service.settings, http)
            objects = kind(buckets, calls)
            deps = build_dependencies(service.settings, database, calls, buckets, objects)
            yield deps.stager, objects


@pytest.fixture(scope="module")
async def eager(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service without a grace period."""
    async with open_blob_service(databases["attachment_blob"], s3, keys, collect_grace_seconds=0) as service:
        yield service


async def repaired(tenant: Tenant, expected: dict[str, int]) -> None:
    """Expect these counts of a dry run, which changes nothing, and of a run."""
    before = await tenant.left(), await tenant.rows("sets"), await tenant.rows("uploads")
    assert await tenant.collect(dry_run=True) == expected
    assert (await tenant.left(), await tenant.rows("sets"), await tenant.rows("uploads")) == before
    assert await tenant.collect() == expected
    assert await tenant.collect() == {}
