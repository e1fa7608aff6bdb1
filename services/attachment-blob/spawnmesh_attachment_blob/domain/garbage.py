"""What a comparison of bucket and rows found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ages:
    """How long, in seconds, what a collection takes has to have been as it is."""

    grace_seconds: int
    """For what is left over: whoever left it may be at work."""
    staged_seconds: int
    """For sets that nobody attached."""
    tombstone_seconds: int
    """For what released sets leave."""


@dataclass(slots=True)
class GarbageCounts:
    """Counted up while a collection works; the contract says what each is."""

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
