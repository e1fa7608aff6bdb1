"""The storage that a tenant uses, and its quota."""

from dataclasses import dataclass

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Bytes of a tenant that count, and the limit for both together.

    `stored_bytes` are those of blobs that are STORED. `uploading_bytes` are the announced sizes of
    uploads that are not COMPLETE.
    """

    stored_bytes: int
    uploading_bytes: int
    max_stored_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.stored_bytes + self.uploading_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that still fit. It is 0, not less, after the quota was lowered below the usage."""
        return max(self.max_stored_bytes - self.used_bytes, 0)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether so many bytes fit into the quota. No bytes fit into any."""
        return size_bytes <= self.free_bytes


def storage_exceeded(usage: StorageUsage, size_bytes: int) -> MeshError:
    """Build the error for files with so many bytes, which do not fit into the quota."""
    return MeshError(
        Reason.ATTACHMENTS_STORED_BYTES_EXCEEDED,
        f"the tenant uses {usage.used_bytes} bytes of storage, these files have {size_bytes}, and"
        f" {usage.max_stored_bytes} are allowed; delete sessions that keep files, wait until unused uploads"
        " expire, or ask the operator to raise attachments.max_stored_bytes",
        facts={
            "limit_bytes": usage.max_stored_bytes,
            "stored_bytes": usage.stored_bytes,
            "uploading_bytes": usage.uploading_bytes,
            "size_bytes": size_bytes,
        },
    )
