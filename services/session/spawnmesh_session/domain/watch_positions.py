"""Positions of watchers."""

from dataclasses import dataclass

MAX_MEMBERS = 100
"""The most sessions of a family that one watch follows at the same time."""


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """A position in one session: its events up to a number, its transcript up to a cursor of the
    transcript service, and the run whose draft is open. Without that cursor, it is behind a seq.
    The draft of a run that has ended does not count.
    """

    event_number: int = 0
    transcript_cursor: str = ""
    open_run_id: str = ""
    after_seq: int = 0
    ended_run_id: str = ""


@dataclass(frozen=True, slots=True)
class WatchScope:
    """The session that is watched, and the parts of it that are streamed."""

    session_id: str
    with_transcript: bool
    with_descendants: bool
