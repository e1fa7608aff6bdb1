"""Ages, counts and steps of a garbage collection."""

import json
from dataclasses import dataclass, fields
from enum import StrEnum


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

    def add(self, others: "GarbageCounts") -> None:
        """Add the counts of another part of the collection."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(others, field.name))

    @property
    def done_count(self) -> int:
        """The number of objects that were compared, and of other things that were found."""
        return (
            self.seen_object_count
            + self.unsettled_blob_count
            + self.unremoved_set_count
            + self.expired_set_count
            + self.expired_upload_count
            + self.orphan_multipart_count
            + self.forgotten_set_count
        )


class GarbagePhase(StrEnum):
    """The parts of a collection, in their order: first the rows that record unfinished work."""

    UNREMOVED_SETS = "unremoved_sets"
    OUTLIVED_SETS = "outlived_sets"
    ABANDONED_SETS = "abandoned_sets"
    EXPIRED_UPLOADS = "expired_uploads"
    UNSETTLED_BLOBS = "unsettled_blobs"
    OBJECTS = "objects"
    MULTIPARTS = "multiparts"
    TOMBSTONES = "tombstones"


_PHASES = tuple(GarbagePhase)


@dataclass(frozen=True, slots=True)
class GarbagePosition:
    """The next page of a collection: its phase, and the key that it begins behind."""

    phase: GarbagePhase = _PHASES[0]
    after: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "GarbagePosition":
        """Return the position that `str` has rendered; the first one for an empty text."""
        if not text:
            return cls()
        phase, *after = json.loads(text)
        return cls(GarbagePhase(phase), tuple(after))

    def __str__(self) -> str:
        return json.dumps([self.phase, *self.after])

    def behind(self, after: tuple[str, ...] | None) -> "GarbagePosition | None":
        """Return the position behind a page; None at the end.

        `after` is the last key of the page, or None if it was the last page of the phase.
        """
        if after is not None:
            return GarbagePosition(self.phase, after)
        rest = _PHASES[_PHASES.index(self.phase) + 1 :]
        return GarbagePosition(rest[0]) if rest else None
