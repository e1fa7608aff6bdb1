"""Progress of a tenant's purge in another service, which runs in bounded parts."""

from dataclasses import dataclass

PURGE_SECONDS = 60.0
"""The deadline of one part: it removes up to thousands of objects."""


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """The removals of one part. `row_count` counts rows that no other count includes."""

    done: bool
    row_count: int
    object_count: int = 0
    transcript_count: int = 0

    @property
    def found_nothing(self) -> bool:
        """Return whether the purge is done and this part found nothing to remove."""
        return self.done and not (self.row_count or self.object_count or self.transcript_count)
