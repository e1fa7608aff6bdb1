"""Limits and policy of a tenant."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """Limits of one tenant for the files of one spawn. Sizes count decoded bytes."""

    enabled: bool = True
    max_files: int = 50
    max_file_bytes: int = 1 * MIB
    max_total_bytes: int = 5 * MIB


@dataclass(frozen=True, slots=True)
class AttachmentPolicy:
    """Policy of one tenant.

    A `retention_seconds` of 0 keeps sets until they are released. A `download_url_seconds` of 0
    disables download URLs.
    """

    limits: AttachmentLimits
    retention_seconds: int = 0
    download_url_seconds: int = 0
