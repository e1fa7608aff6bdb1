"""What the attachment-blob service reads from its environment, as `ATTACHMENT_BLOB_…`."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings


class AttachmentBlobSettings(ProcessSettings):
    """Settings of the attachment-blob service. The S3 keys are those that make buckets and assume the tenants' role."""

    model_config = SettingsConfigDict(env_prefix="ATTACHMENT_BLOB_", frozen=True, extra="ignore")

    database_url: str
    database_owner_url: str = ""
    """For `migrate` alone."""
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
