"""The storage of transcripts and attachment sets as it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.amounts import percent_text
from spawnmesh_console.domain.states import ShownState

LISTED_NAMES = 3
"""The names of a set that the list shows."""

_SET_STATES = {
    "STAGED": ShownState("staged", "queued"),
    "ATTACHED": ShownState("attached", "succeeded"),
    "RELEASED": ShownState("released", "closed"),
}
_UNKNOWN = ShownState("unknown", "closed")


@dataclass(frozen=True, slots=True)
class TranscriptStorage:
    """The storage of a transcript. `stored_bytes` are those of the `logical_bytes` that the
    database has.
    """

    session_id: str
    entry_count: int
    token_count: int
    logical_bytes: int
    stored_bytes: int

    @property
    def moved_bytes(self) -> int:
        """The bytes that have left the database."""
        return max(0, self.logical_bytes - self.stored_bytes)

    @property
    def moved_share(self) -> str:
        """Their share in percent."""
        return percent_text(self.moved_bytes, self.logical_bytes)


@dataclass(frozen=True, slots=True)
class ListedSet:
    """An attachment set with the first names of its files. `run_id` is empty for the attachments of
    a spawn.
    """

    set_id: str
    session_id: str
    run_id: str
    state: ShownState
    names: Sequence[str]
    file_count: int
    total_bytes: int
    create_time: datetime

    @property
    def further_count(self) -> int:
        """The number of files whose names are left out."""
        return self.file_count - len(self.names)


def set_state(state: str) -> ShownState:
    """Return how the state of a set, such as `ATTACHED`, is shown."""
    return _SET_STATES.get(state, _UNKNOWN)


def sum_of(transcripts: Sequence[TranscriptStorage]) -> TranscriptStorage:
    """Return the sum of some transcripts, without a session."""
    return TranscriptStorage(
        "",
        sum(one.entry_count for one in transcripts),
        sum(one.token_count for one in transcripts),
        sum(one.logical_bytes for one in transcripts),
        sum(one.stored_bytes for one in transcripts),
    )
