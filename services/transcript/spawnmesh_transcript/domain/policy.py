"""What holds for a tenant's transcripts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """This service's copy of a tenant's settings. Version 0 is that of a tenant that was never made ready."""

    settings_version: int = 0
    mask_secrets: bool = False
