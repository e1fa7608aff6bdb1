"""What the attachment-blob service reads from its environment, as `ATTACHMENT_BLOB_…`."""

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings


class AttachmentBlobSettings(ProcessSettings):
    """Settings of the attachment-blob service. The S3 keys are those that make buckets and assume the tenants' role."""

    model_config = SettingsConfigDict(env_prefix="ATTACHMENT_BLOB_", frozen=True, extra="ignore")

    database_url: DatabaseUrl
    database_owner_url: DatabaseUrl = ""
    """For `migrate` alone."""
    database_direct_url: DatabaseUrl = ""
    """Set where `database_url` leads through a pooler in transaction mode; nothing listens here."""
    database_max_connections: int = Field(default=8, ge=2, le=1000)
    s3_endpoint: str = Field(pattern=r"^[^/\s]+$")
    """`host:port`."""
    s3_secure: bool = False
    """Whether S3 is spoken to over TLS."""
    s3_region: str = "us-east-1"
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    sts_endpoint: str = Field(pattern=r"^https?://")
    sts_role_arn: str
    bucket_prefix: str = Field(default="spawnmesh-", pattern=r"^[a-z0-9][a-z0-9-]{0,22}$")
    """A tenant's bucket is named this and the tenant's id; S3 allows 63 characters in all."""
    s3_max_threads: int = Field(default=16, ge=1, le=256)
    s3_connect_timeout_seconds: float = Field(default=1.0, gt=0, le=60)
    s3_read_timeout_seconds: float = Field(default=3.0, gt=0, le=300)
    """Longest silence of S3 within a call."""
    s3_max_cached_tenants: int = Field(default=1024, ge=1)
    """Tenants whose credentials are kept at hand."""
    s3_encryption: Literal["none", "s3", "kms"] = "none"
    """How S3 is asked to encrypt what is put: not at all, with its own keys, or with a key of a key service."""
    s3_kms_key_id: str = ""
    """The key for `kms`; `{tenant_id}` in it stands for the tenant's id."""
    stage_max_bytes: int = Field(default=48 * 1024**2, ge=1024**2)
    """How much of what comes inline, with sets and as payloads, is worked on at the same time; each byte takes up to four of memory. A tenant
    has half of it at most; others wait a while. What is small has a quarter as much apart."""
    read_max_streams: int = Field(default=32, ge=1, le=1024)
    """Files and payloads read at the same time; each takes a connection to S3 and up to 2 MiB of memory. Others wait a while; a tenant's do when
    it has half of them."""
    read_idle_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest time in which a reader takes nothing before its call is ended; one that takes less than 64 KiB a second uses it up, too."""
    upload_ttl_seconds: int = Field(default=24 * 3600, ge=60, le=30 * 24 * 3600)
    """How long an upload is kept after its last durable part, or after its completion."""
    upload_idle_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest silence of an upload's sender before its stream is ended; one that sends less than 64 KiB a second uses it up, too."""
    upload_max_streams: int = Field(default=6, ge=1, le=256)
    """Uploads received at the same time; each takes two parts of memory, 10 MiB. Others wait a while; a tenant's do when it has half of them."""
    upload_max_open: int = Field(default=1000, ge=1, le=1_000_000)
    """How many uploads of one tenant may be open at the same time, on all replicas together."""
    upload_max_open_bytes: int = Field(default=100 * 1024**3, ge=1)
    """How large all files together may be whose uploads are open, for one tenant; counted by what was announced."""
    upload_max_finished: int = Field(default=10_000, ge=1, le=1_000_000)
    """How many finished uploads of one tenant may be kept at the same time, used or not, until they expire."""
    upload_max_finished_bytes: int = Field(default=500 * 1024**3, ge=1)
    """How large the files of finished uploads may be together that are kept for one tenant; the same bytes count once."""
    staged_ttl_seconds: int = Field(default=24 * 3600, ge=3600)
    """How long a set waits to be attached. Must be longer than any spawn may take, by far: `spawn_deadline_seconds` of the session service."""
    tombstone_ttl_seconds: int = Field(default=30 * 24 * 3600, ge=24 * 3600)
    """How long it is known that a set was released: for so long it is shown as RELEASED, and no late call stages it again."""
    collect_interval_seconds: float = Field(default=600.0, gt=0)
    """How often the worker compares each tenant's bucket with its rows."""
    collect_grace_seconds: int = Field(default=3600, ge=0)
    """Younger leftovers are left alone. Must be longer than any call takes."""

    @model_validator(mode="after")
    def _key_is_named(self) -> Self:
        if self.s3_encryption == "kms":
            try:
                named = self.s3_kms_key_id.format(tenant_id="t1")
            except (KeyError, IndexError, ValueError):
                named = ""
            if not named:
                raise ValueError("s3_encryption kms needs s3_kms_key_id, with no placeholder but {tenant_id}")
        return self
