"""A transcript and its key."""

from dataclasses import dataclass

from spawnmesh_transcript.domain.entries import Head


@dataclass(frozen=True, slots=True)
class Key:
    """Names a transcript."""

    tenant_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """A transcript's head, its origin, and its totals. Turns are messages and system notes."""

    head: Head
    forked_from_session_id: str
    turn_count: int
    superseded_turn_count: int
    token_count: int
