"""Ages and counts of a garbage collection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ages:
    """Ages, in seconds, from which the garbage collector removes things."""

    grace_seconds: int
    """Leftovers. A younger leftover may belong to a call that is still running."""
    staged_seconds: int
    """Sets that were staged and never attached."""
    tombstone_seconds: int
    """Tombstones of released sets."""


@dataclass(slots=True)
class GarbageCounts:
    """Counters of one collection. The proto message of the same name describes each field."""

    seen_object_count: int = 0
    orphan_object_count: int = 0
    unsettled_blob_count: int = 0
    unremoved_set_count: int = 0
    expired_set_count: int = 0
    expired_upload_count: int = 0
    orphan_multipart_count: int = 0
    missing_object_count: int = 0
    damaged_object_count: int = 0
    forgotten_set_count: int = 0
    refused_deletion_count: int = 0
