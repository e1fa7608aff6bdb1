"""The attachment-blob service on a real PostgreSQL and a real S3, tenants that use it, and an administrator who looks at what is stored."""

import io
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import urllib3
from minio import Minio
from pydantic import SecretStr
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.app import open_service
from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.comparison import hash_of_key
from spawnmesh_attachment_blob.domain.sets import SetToStage, StoredFile
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import http_pool, open_s3_calls
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Connection, Database, open_database
from spawnmesh_postgres.migrations import migrate
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.contract.serving import caller_at, client_tokens, served, shared_settings

TABLES = ("attachment_tenants", "sets", "set_files", "blobs", "uploads", "upload_parts")
KIB = 1024


def text(name: str, content: str, mime_type: str = "text/plain") -> attachment_pb2.InlineAttachment:
    """An item given as text."""
    return attachment_pb2.InlineAttachment(
        name=name, content=content, encoding=attachment_pb2.ENCODING_UTF8, mime_type=mime_type
    )


def base64(name: str, content: str) -> attachment_pb2.InlineAttachment:
    """An item given as base64."""
    return attachment_pb2.InlineAttachment(name=name, content=content, encoding=attachment_pb2.ENCODING_BASE64)


def new_set_id() -> str:
    """An id for a set."""
    return new_id(IdKind.ATTACHMENT_SET)


@contextmanager
def refused(reason: Reason, **facts: str) -> Iterator[list[MeshError]]:
    """The block is refused with this reason and at least these facts; the error is put into the list."""
    caught: list[MeshError] = []
    with pytest.raises(MeshError) as raised:
        yield caught
    assert (raised.value.reason, raised.value.domain) == (reason, "attachment-blob.spawnmesh")
    assert facts.items() <= raised.value.facts.items()
    caught.append(raised.value)


@dataclass(frozen=True)
class BlobService:
    """The running service, the database it uses, and the administrator's view of its store."""

    peer: Peer
    keys: Path
    settings: AttachmentBlobSettings
    database: Database
    admin: Minio
    target: str

    def tenant(self) -> "Tenant":
        return Tenant(self)


@dataclass(frozen=True)
class Tenant:
    """A tenant of its own for one test, as the session service, its clients and its runs see it."""

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

    async def call(self, method: str, request: Any, *, token: str = "", timeout_seconds: float = 20.0) -> Any:
        with acting_with_token(token or self.service_token()):
            return await self.service.peer.unary(getattr(self.stub, method), request, timeout_seconds=timeout_seconds)

    async def prepare(self, version: int = 1, **limits: Any) -> int:
        defaults = {
            "enabled": True,
            "max_file_count": 50,
            "max_file_bytes": 1024 * KIB,
            "max_total_bytes": 5 * 1024 * KIB,
        }
        request = pb.PrepareTenantRequest(
            settings_version=version, limits=pb.AttachmentLimits(**{**defaults, **limits})
        )
        answer: pb.PrepareTenantResponse = await self.call("PrepareTenant", request)
        return answer.settings_version

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
        answer: pb.ReleaseSetResponse = await self.call("ReleaseSet", pb.ReleaseSetRequest(set_id=set_id), **options)
        return answer.deleted_object_count

    async def get(self, set_id: str, *, token: str = "") -> attachment_pb2.AttachmentSet:
        answer: pb.GetSetResponse = await self.call(
            "GetSet", pb.GetSetRequest(set_id=set_id), token=token or self.client_token()
        )
        return answer.set

    async def pieces(
        self, set_id: str, name: str, *, token: str = "", into: list[bytes] | None = None, **span: int
    ) -> list[bytes]:
        """The pieces of the file or of a range of it, put into the list as they come."""
        pieces = [] if into is None else into
        request = pb.ReadFileRequest(set_id=set_id, name=name, **span)
        with acting_with_token(token or self.client_token()):
            async for piece in self.service.peer.stream(self.stub.ReadFile, request, timeout_seconds=120):
                pieces.append(piece.data)
        return pieces

    async def read(self, set_id: str, name: str, *, token: str = "", **span: int) -> bytes:
        return b"".join(await self.pieces(set_id, name, token=token, **span))

    async def collect(self, *, dry_run: bool = False) -> dict[str, int]:
        """The counts of a collection that are not zero; all objects seen are left out."""
        request = pb.CollectGarbageRequest(tenant_id=self.tenant_id, dry_run=dry_run)
        answer: pb.CollectGarbageResponse = await self.call("CollectGarbage", request, token=self.admin_token())
        return {field.name: value for field, value in answer.counts.ListFields() if field.name != "seen_object_count"}

    def object_keys(self) -> list[str]:
        """What is in the tenant's bucket, as the administrator sees it."""
        found = self.service.admin.list_objects(self.bucket, recursive=True)
        return sorted(str(entry.object_name) for entry in found)

    def key_of(self, sha256: str) -> str:
        """Where the one object with this hash is."""
        (key,) = (key for key in self.object_keys() if hash_of_key(key) == sha256)
        return key

    def unfinished_multiparts(self) -> list[str]:
        """Keys of multipart uploads that were begun and not ended, as the administrator sees them."""
        found = self.service.admin._list_multipart_uploads(self.bucket)
        return [upload.object_name for upload in found.uploads]

    def put(self, key: str, data: bytes) -> None:
        """Puts an object behind the service's back."""
        self.service.admin.put_object(self.bucket, key, io.BytesIO(data), len(data))

    def overwrite(self, sha256: str, data: bytes) -> None:
        """Changes stored bytes behind the service's back."""
        self.put(self.key_of(sha256), data)

    def lose(self, sha256: str) -> None:
        """Deletes stored bytes behind the service's back."""
        self.service.admin.remove_object(self.bucket, self.key_of(sha256))

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows a transaction of the tenant sees; the statement names no tenant."""
        async with self.service.database.transaction(self.tenant_id) as connection:
            return await (await connection.execute(f"select * from {table}")).fetchall()

    async def left(self) -> tuple[int, int, int]:
        """How many references, blobs and objects there are."""
        return len(await self.rows("set_files")), len(await self.rows("blobs")), len(self.object_keys())


def admin_of(endpoint: S3Endpoint, http: urllib3.PoolManager) -> Minio:
    """A client with the administrator's keys."""
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
    """Migrates and serves."""
    migrate(dsn.owner, package="spawnmesh_attachment_blob", schema="attachment_blob")
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
        http = stack.enter_context(urllib3.PoolManager(timeout=10, retries=False))
        yield BlobService(peer, keys, settings, database, admin_of(endpoint, http), target)


@pytest.fixture(scope="module")
async def blobs(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """The service."""
    async with open_blob_service(databases["attachment_blob"], s3, keys) as service:
        yield service


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    """A tenant that was made ready."""
    tenant = blobs.tenant()
    await tenant.prepare()
    return tenant


async def stage_within(connection: Connection, tenant_id: str, *files: StoredFile) -> frozenset[str]:
    """Writes a new set down as staging does, in a transaction that stays open; the hashes whose objects are to be put."""
    wanted = SetToStage(new_set_id(), new_id(IdKind.SESSION), files, {file.sha256: b"" for file in files}, "suffix")
    staging = store.staging_of(tenant_id, AttachmentLimits(), wanted)
    rows = store.staged_rows(await (await connection.execute(*staging)).fetchall())
    assert rows.outcome is store.StageOutcome.WRITTEN
    return rows.unstored


@asynccontextmanager
async def open_staging(
    service: BlobService, kind: type[ObjectStore] = ObjectStore, database: Database | None = None
) -> AsyncIterator[tuple[Staging, Any]]:
    """The part that stages, on an object store of this kind, in a second process as it were."""
    database = database or service.database
    with http_pool(service.settings) as http:
        async with open_s3_calls(service.settings) as calls:
            objects = kind(TenantBuckets(service.settings, http), calls)
            turns = S3Turns(4)
            removal = Removal(database, objects, turns)
            yield Staging(database, objects, turns, removal, max_bytes=service.settings.stage_max_bytes), objects


@pytest.fixture(scope="module")
async def eager(databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path) -> AsyncIterator[BlobService]:
    """A service without a grace period."""
    async with open_blob_service(databases["attachment_blob"], s3, keys, collect_grace_seconds=0) as service:
        yield service


async def repaired(tenant: Tenant, expected: dict[str, int]) -> None:
    """A dry run says what there is to do and does nothing; a run does it; the next one finds nothing."""
    before = await tenant.left(), await tenant.rows("sets"), await tenant.rows("uploads")
    assert await tenant.collect(dry_run=True) == expected
    assert (await tenant.left(), await tenant.rows("sets"), await tenant.rows("uploads")) == before
    assert await tenant.collect() == expected
    assert await tenant.collect() == {}
