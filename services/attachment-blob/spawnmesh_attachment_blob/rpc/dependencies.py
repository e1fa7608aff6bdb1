"""Dependencies of the RPCs."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database

from spawnmesh_attachment_blob.clients.multiparts import Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain.uploads import UploadUsage
from spawnmesh_attachment_blob.operations.file_reader import FileReader
from spawnmesh_attachment_blob.operations.garbage_collector import GarbageCollector
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.set_stager import SetStager
from spawnmesh_attachment_blob.operations.tenant_bucket import TenantBucket
from spawnmesh_attachment_blob.operations.upload_limiter import UploadLimiter
from spawnmesh_attachment_blob.operations.upload_remover import UploadRemover
from spawnmesh_attachment_blob.operations.upload_writer import UploadStorage


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Stores, clients and operations. `app.open_dependencies` fills it."""

    database: Database
    calls: S3Calls
    buckets: TenantBuckets
    objects: ObjectStore
    multiparts: Multiparts
    releaser: Releaser
    stager: SetStager
    reader: FileReader
    upload_remover: UploadRemover
    upload_storage: UploadStorage
    upload_limiter: UploadLimiter
    upload_quota: UploadUsage
    upload_idle_seconds: float
    collector: GarbageCollector
    tenant_bucket: TenantBucket
