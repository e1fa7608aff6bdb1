"""Decides how the staging of a set goes on, from the rows that its transaction wrote and locked."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.sets import SetToStage
from spawnmesh_attachment_blob.domain.storage import StorageUsage


class StageRefusal(StrEnum):
    """The reason for which a set is not staged. The transaction is not to be committed."""

    UNKNOWN_TENANT = "UNKNOWN_TENANT"
    """The tenant is not prepared, or it is being purged."""
    POLICY_CHANGED = "POLICY_CHANGED"
    """The tenant's limits differ from those of the validation."""
    EXISTS = "EXISTS"
    """The set id was used before."""
    UPLOAD_GONE = "UPLOAD_GONE"
    """Bytes that were uploaded before are not stored any more."""
    REFERENCE_GONE = "REFERENCE_GONE"
    """Bytes of another set are not stored any more: it was released, or they were lost."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The set was not written: it exists already, or its bytes do not fit into the quota.

    The transaction is not to be committed.
    """

    usage: StorageUsage


@dataclass(frozen=True, slots=True)
class WrittenSet:
    """A set whose rows are written. The objects of `unstored` must be put before the commit."""

    create_time: datetime
    unstored: frozenset[str]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that a transaction wrote and locked for a set."""

    limits: AttachmentLimits | None
    """The tenant's limits, or None for a tenant that is not prepared or is being purged."""
    create_time: datetime | None
    """None if the set was not written."""
    unstored: frozenset[str] = frozenset()
    """Hashes of the blobs that this transaction made STORED."""
    stored: frozenset[str] = frozenset()
    """Hashes of blobs that are STORED, and that no other transaction deletes before the commit."""
    usage: StorageUsage | None = None
    """The tenant's usage before this set; None if the tenant has no limits here either."""
    needed_bytes: int = 0
    """The bytes of the set that count against the quota: those that the tenant has not stored."""

    def with_stored(self, hashes: frozenset[str]) -> "StagedRows":
        """Return the rows with the lock of these blobs, which were STORED."""
        return replace(self, stored=self.stored | hashes)

    def with_restored(self, hashes: frozenset[str]) -> "StagedRows":
        """Return the rows after these blobs became STORED."""
        return replace(self, unstored=self.unstored | hashes)

    def missing(self, requested: SetToStage) -> frozenset[str]:
        """Return the hashes for which a written set has no STORED blob.

        They were DELETING, LOST or gone.
        """
        if self.create_time is None:
            return frozenset()
        return frozenset(file.sha256 for file in requested.files) - self.unstored - self.stored

    def can_restore(self, requested: SetToStage) -> bool:
        """Return whether blobs are missing, and the call has the bytes of each."""
        missing = self.missing(requested)
        return bool(missing) and missing <= requested.data_by_hash.keys()


def outcome_of(
    rows: StagedRows, requested: SetToStage, limits: AttachmentLimits
) -> WrittenSet | StageRefusal | NoRoom:
    """Return the outcome for a set that was validated with these limits."""
    if rows.limits is None:
        return StageRefusal.UNKNOWN_TENANT
    if rows.limits != limits:
        return StageRefusal.POLICY_CHANGED
    if rows.create_time is None:
        if rows.usage is None or rows.usage.has_room(rows.needed_bytes):
            return StageRefusal.EXISTS
        return NoRoom(rows.usage)
    missing = rows.missing(requested)
    if missing:
        is_reference = missing - requested.data_by_hash.keys() <= requested.referenced_hashes
        return StageRefusal.REFERENCE_GONE if is_reference else StageRefusal.UPLOAD_GONE
    return WrittenSet(rows.create_time, rows.unstored)
