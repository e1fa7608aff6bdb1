"""Sessions: their states and events, and the rules of access and cleanup."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spawnmesh_core.errors import not_found

from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES, Run
from spawnmesh_session.domain.spawns import SpawnFailure


class SessionState(StrEnum):
    """PROVISIONING -> ACTIVE -> CLOSED, or PROVISIONING -> SPAWN_FAILED."""

    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    CLOSED = "CLOSED"
    SPAWN_FAILED = "SPAWN_FAILED"


LIVE_SESSION_STATES = frozenset({SessionState.PROVISIONING, SessionState.ACTIVE})
TERMINAL_SESSION_STATES = frozenset({SessionState.CLOSED, SessionState.SPAWN_FAILED})


class SessionMode(StrEnum):
    """RUN closes with its run. SESSION stays open for more messages."""

    RUN = "RUN"
    SESSION = "SESSION"


class EventKind(StrEnum):
    """The kinds of lifecycle events; `session.proto` describes each."""

    PROVISIONING = "PROVISIONING"
    RUN = "RUN"
    REVISION = "REVISION"
    CHILD_SPAWNED = "CHILD_SPAWNED"
    CHILD_ANNOUNCED = "CHILD_ANNOUNCED"
    SPAWN_FAILED = "SPAWN_FAILED"
    CLOSED = "CLOSED"
    REVISION_CAPPED = "REVISION_CAPPED"
    FILES_PUBLISHED = "FILES_PUBLISHED"
    MODEL_FAILED = "MODEL_FAILED"
    HOOK_DECIDED = "HOOK_DECIDED"
    BUDGET_CHANGED = "BUDGET_CHANGED"


class SessionOrder(StrEnum):
    """The orders of a list of sessions that an index has, as the contract spells them."""

    NEWEST = "create_time desc"
    OLDEST = "create_time"
    LAST_ENDED = "end_time desc"


TERMINAL_EVENT_KINDS = frozenset({EventKind.SPAWN_FAILED, EventKind.CLOSED})


@dataclass(frozen=True, slots=True)
class Session:
    """A session. `latest_run` is set only by the reads that return it.

    Its model calls count in the budgets of `budget_session_ids`, the outermost first.
    """

    session_id: str
    state: SessionState
    agent_id: str
    agent_version: int
    label: str
    model: str
    mode: SessionMode
    context: str
    cleanup: str
    runtime: str
    thinking: str
    metadata: dict[str, str]
    parent_session_id: str
    parent_run_id: str
    ancestor_ids: tuple[str, ...]
    spawn_count: int
    run_timeout: timedelta
    task_hash: str
    traceparent: str
    receipt: dict[str, Any] | None
    gate_passed: bool
    failure: SpawnFailure | None
    create_time: datetime
    end_time: datetime | None
    archive_time: datetime | None
    delete_time: datetime | None
    fork_session_id: str = ""
    fork_seq: int = 0
    latest_run: Run | None = None
    budget_session_ids: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Return whether the session is terminal or its newest run has ended."""
        run = self.latest_run
        return self.state in TERMINAL_SESSION_STATES or (run is not None and run.state in TERMINAL_RUN_STATES)


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A session of a locked family: itself or a descendant."""

    session_id: str
    state: SessionState


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A lifecycle event of a session. Its number is its place among them, from 1."""

    number: int
    event_time: datetime
    kind: EventKind
    run_id: str
    run_state: str
    child_session_id: str
    detail: str
    set_id: str


def require_access(session: Session | None, session_id: str, family_root: str = "") -> Session:
    """Return the session. Raise NOT_FOUND if it is absent or outside the family of `family_root`.

    An empty `family_root` stands for a client, which may access every session of its tenant.
    """
    if session is None or (
        family_root and family_root != session_id and family_root not in session.ancestor_ids
    ):
        raise not_found("session", session_id)
    return session


def releases_attachments(cleanup: str, *, retain_on_session_keep: bool) -> bool:
    """Return whether a session's files are released when it ends."""
    return cleanup == "DELETE" or not retain_on_session_keep
