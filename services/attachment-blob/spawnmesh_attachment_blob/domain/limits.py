"""Limits and policy of a tenant."""

from dataclasses import dataclass

MIB = 1024 * 1024
DEFAULT_MAX_STORED_BYTES = 100 * 1024 * MIB


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """Limits of one tenant for the files of one spawn. Sizes count decoded bytes."""

    enabled: bool = True
    max_files: int = 50
    max_file_bytes: int = 1 * MIB
    max_total_bytes: int = 5 * MIB


@dataclass(frozen=True, slots=True)
class AttachmentPolicy:
    """Policy of one tenant. `max_stored_bytes` is its storage quota.

    A `retention_seconds` of 0 keeps sets until they are released. A `download_url_seconds` of 0
    disables download URLs.
    """

    limits: AttachmentLimits
    retention_seconds: int = 0
    download_url_seconds: int = 0
    max_stored_bytes: int = DEFAULT_MAX_STORED_BYTES
