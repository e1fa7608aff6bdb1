"""Files that runs have published, as they are shown."""

from dataclasses import dataclass
from datetime import datetime

LISTED_FILES = 10
"""A list shows so many files of each set, and leads to the page of a set with more."""
PAGE_FILES = 200
"""The page of a set shows so many files, and leads to those before and behind them."""


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file of a set. `place` is its position in the set, from 0."""

    place: int
    name: str
    size_bytes: int
    mime_type: str


@dataclass(frozen=True, slots=True)
class ShownOutputSet:
    """A set that a run has published. `files` are some of its `file_count` files, in order."""

    set_id: str
    run_id: str
    publish_time: datetime
    file_count: int
    total_bytes: int
    files: tuple[ShownFile, ...]
    is_deleted: bool = False

    @property
    def first_place(self) -> int:
        """The place of the first of `files`; 0 without any."""
        return self.files[0].place if self.files else 0

    @property
    def end_place(self) -> int:
        """The place behind the last of `files`; 0 without any."""
        return self.files[-1].place + 1 if self.files else 0

    @property
    def earlier_place(self) -> int:
        """The place at which the page before this one begins."""
        return max(0, self.first_place - PAGE_FILES)
