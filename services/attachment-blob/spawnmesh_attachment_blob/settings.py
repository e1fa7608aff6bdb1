"""Settings of the attachment-blob service, from environment variables `ATTACHMENT_BLOB_…`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings


class AttachmentBlobSettings(ProcessSettings):
    """Settings of the attachment-blob service."""

    model_config = SettingsConfigDict(env_prefix="ATTACHMENT_BLOB_", frozen=True, extra="ignore")

    database_url: DatabaseUrl
    """URL of PostgreSQL, as the role of the service."""
    database_owner_url: DatabaseUrl = ""
    """Only for `migrate`."""
    database_direct_url: DatabaseUrl = ""
    """For the listeners, if `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=8, ge=2, le=1000)
    """The largest number of connections of the pool."""
    session_target: str | None = None
    """`host:port` of the session service, from which this service learns which tokens are revoked.

    Without it, it accepts the tokens of ended runs, and revoked ones, until they expire.
    """
    s3_endpoint: str = Field(pattern=r"^[^/\s]+$")
    """`host:port`."""
    s3_secure: bool = False
    """Use TLS for S3."""
    s3_region: str = "us-east-1"
    """The region in which buckets are created."""
    s3_credentials: Literal["keys", "web_identity", "aws"] = "keys"
    """The kind of the credentials that create buckets and assume the tenants' role.

    `keys` are an access key and its secret. `web_identity` is a token in a file, for which STS
    gives credentials. `aws` is what AWS gives to a pod or a machine, by its variables `AWS_…`.
    """
    s3_access_key: SecretStr = SecretStr("")
    """The access key, for `keys`."""
    s3_secret_key: SecretStr = SecretStr("")
    """The secret of the access key, for `keys`."""
    s3_web_identity_token_file: Path | None = None
    """File with the token, for `web_identity`. It is read for each request to STS."""
    s3_role_arn: str = ""
    """The role for the token, for `web_identity`. Empty where the token itself names its rights."""
    sts_endpoint: str = Field(pattern=r"^https?://")
    """URL of the STS service that gives credentials for one tenant's bucket."""
    sts_role_arn: str
    """The role that is assumed for a tenant, with a policy for its bucket alone."""
    bucket_prefix: str = Field(default="spawnmesh-", pattern=r"^[a-z0-9][a-z0-9-]{0,22}$")
    """The name of a tenant's bucket is this prefix and the tenant's id. S3 allows 63 characters."""
    s3_max_threads: int = Field(default=16, ge=1, le=256)
    """Calls to S3 at the same time."""
    s3_connect_timeout_seconds: float = Field(default=1.0, gt=0, le=60)
    """Time to connect to S3."""
    s3_read_timeout_seconds: float = Field(default=3.0, gt=0, le=300)
    """Longest silence of S3 during a call."""
    s3_max_cached_tenants: int = Field(default=1024, ge=1)
    """Tenants whose credentials are cached."""
    s3_encryption: Literal["none", "s3", "kms"] = "none"
    """Encryption of objects in S3: none, with keys of S3, or with a key of a key service."""
    s3_kms_key_id: str = ""
    """The key for `kms`. `{tenant_id}` in it is replaced by the tenant's id."""
    stage_max_bytes: int = Field(default=48 * 1024**2, ge=1024**2)
    """Inline bytes, of sets and payloads, that are worked on at the same time.

    Each takes up to four bytes of memory. A tenant gets at most half; further calls wait for some
    seconds. Small calls have a separate limit, a quarter of this one.
    """
    read_max_streams: int = Field(default=32, ge=1, le=1024)
    """Files and payloads that are read at the same time.

    Each takes a connection to S3 and up to 2 MiB of memory. A tenant gets at most half; further
    calls wait for some seconds.
    """
    read_idle_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Idle timeout of a reader. A reader that takes less than 64 KiB a second uses it up, too."""
    upload_ttl_seconds: int = Field(default=24 * 3600, ge=60, le=30 * 24 * 3600)
    """Lifetime of an upload after its last durable part, or after its completion."""
    upload_idle_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Idle timeout of a sender. A sender of less than 64 KiB a second uses it up, too."""
    upload_max_streams: int = Field(default=6, ge=1, le=256)
    """Uploads that are received at the same time.

    Each takes two parts of memory, 10 MiB; up to four more parts, 20 MiB, make the first ones
    faster. A tenant gets at most half; further streams wait for some seconds.
    """
    upload_max_open: int = Field(default=1000, ge=1, le=1_000_000)
    """Open uploads of one tenant, on all replicas together."""
    upload_max_open_bytes: int = Field(default=100 * 1024**3, ge=1)
    """Sum of the announced sizes of one tenant's open uploads."""
    upload_max_finished: int = Field(default=10_000, ge=1, le=1_000_000)
    """Finished uploads of one tenant that have not expired, used or not."""
    upload_max_finished_bytes: int = Field(default=500 * 1024**3, ge=1)
    """Sum of the sizes of one tenant's finished uploads. Identical bytes count once."""
    staged_ttl_seconds: int = Field(default=24 * 3600, ge=3600)
    """Age at which a set that was never attached is released.

    It must be much longer than a spawn may take: `spawn_deadline_seconds` of the session service.
    """
    tombstone_ttl_seconds: int = Field(default=30 * 24 * 3600, ge=24 * 3600)
    """Lifetime of a released set's tombstone.

    For so long GetSet returns RELEASED, and a late StageSet is refused.
    """
    collect_interval_seconds: float = Field(default=600.0, gt=0)
    """Interval between two collections of a tenant."""
    collect_grace_seconds: int = Field(default=3600, ge=0)
    """Age from which leftovers are removed. It must be longer than any call takes."""

    @model_validator(mode="after")
    def _require_credentials(self) -> Self:
        has_keys = bool(self.s3_access_key.get_secret_value() and self.s3_secret_key.get_secret_value())
        if has_keys is not (self.s3_credentials == "keys"):
            raise ValueError("s3_credentials keys, and no other, needs s3_access_key and s3_secret_key")
        if (self.s3_web_identity_token_file is not None) is not (self.s3_credentials == "web_identity"):
            raise ValueError("s3_credentials web_identity, and no other, needs s3_web_identity_token_file")
        return self

    @model_validator(mode="after")
    def _require_kms_key(self) -> Self:
        if self.s3_encryption == "kms":
            try:
                key_id = self.s3_kms_key_id.format(tenant_id="t1")
            except (KeyError, IndexError, ValueError):
                key_id = ""
            if not key_id:
                raise ValueError("s3_encryption kms needs s3_kms_key_id; its only placeholder is {tenant_id}")
        return self
