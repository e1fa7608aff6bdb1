"""How much one spawn may hand over."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """Limits of one tenant; sizes count decoded bytes."""

    enabled: bool = True
    max_files: int = 50
    max_file_bytes: int = 1 * MIB
    max_total_bytes: int = 5 * MIB


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What holds for one tenant. A `retention_seconds` of 0 keeps sets for ever, a `download_url_seconds` of 0 gives no URLs."""

    limits: AttachmentLimits
    retention_seconds: int = 0
    download_url_seconds: int = 0
