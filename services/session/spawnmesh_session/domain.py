"""What sessions and runs are, and the rules they live by: values and pure functions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

DEFAULT_AGENT_ID = "default"
DEFAULT_RUN_TIMEOUT = timedelta(hours=1)
DEFAULT_ARCHIVE_AFTER = timedelta(days=30)
EVERY_AGENT = "*"
MAX_AGENT_COUNT = 1000
"""Agents of a tenant, as PutAgent's contract has it: more than people tell apart, and few enough to be listed in full."""
BUILT_IN_TOOLS = (
    "list_files",
    "read_file",
    "search_files",
    "write_file",
    "sessions_spawn",
    "sessions_wait",
    "transcript_search",
    "transcript_describe",
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOUNT_PATH = re.compile(r"[A-Za-z0-9._/:-]*")


class SessionState(StrEnum):
    """PROVISIONING -> ACTIVE -> CLOSED, or PROVISIONING -> SPAWN_FAILED."""

    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    CLOSED = "CLOSED"
    SPAWN_FAILED = "SPAWN_FAILED"


class RunState(StrEnum):
    """QUEUED -> RUNNING -> FINALIZING -> a terminal state, set once."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    FINALIZING = "FINALIZING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    KILLED = "KILLED"


TERMINAL_RUN_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.KILLED})
TERMINAL_SESSION_STATES = frozenset({SessionState.CLOSED, SessionState.SPAWN_FAILED})


class SessionMode(StrEnum):
    """RUN closes with its run; SESSION stays open for more messages."""

    RUN = "RUN"
    SESSION = "SESSION"


class EventKind(StrEnum):
    """What can happen to a session; `session.proto` says what each means."""

    PROVISIONING = "PROVISIONING"
    RUN = "RUN"
    REVISION = "REVISION"
    CHILD_ANNOUNCED = "CHILD_ANNOUNCED"
    SPAWN_FAILED = "SPAWN_FAILED"
    CLOSED = "CLOSED"


TERMINAL_EVENT_KINDS = frozenset({EventKind.SPAWN_FAILED, EventKind.CLOSED})


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """Who runs a session, what it may ask and do."""

    agent_id: str
    system_prompt: str
    models: tuple[str, ...]
    tools: tuple[str, ...]
    spawnable_agents: tuple[str, ...]
    max_turn_count: int
    context_token_budget: int
    thinking: str = ""
    mcp_servers: tuple[str, ...] = ()


DEFAULT_AGENT = AgentProfile(
    agent_id=DEFAULT_AGENT_ID,
    system_prompt="You carry out the task you are given, with the tools you have, and answer with the result.",
    models=(),
    tools=BUILT_IN_TOOLS,
    spawnable_agents=(EVERY_AGENT,),
    max_turn_count=0,
    context_token_budget=0,
)


@dataclass(frozen=True, slots=True)
class SpawnLimits:
    """A tenant's bounds on spawning."""

    max_spawn_depth: int = 5
    max_live_child_count: int = 5
    max_queued_run_count: int = 1000
    max_running_run_count: int = 32
    max_spawn_count: int = 0  # No limit.


def limits_of(settings: Mapping[str, object]) -> SpawnLimits:
    """The bounds in a tenant's stored settings; what is absent or 0 has its default."""
    defaults = SpawnLimits()

    def bound(name: str) -> int:
        value = settings.get(name)
        return value if isinstance(value, int) and value > 0 else int(getattr(defaults, name))

    return SpawnLimits(*(bound(name) for name in SpawnLimits.__slots__))


@dataclass(frozen=True, slots=True)
class Spawn:
    """A spawn as it was asked for, before anything exists. The attachments' content is not in it."""

    session_id: str
    request_id: str
    payload_hash: bytes
    task_hash: str
    agent_id: str
    label: str
    model: str
    mode: str
    context: str
    cleanup: str
    runtime: str
    run_timeout: timedelta
    parent_session_id: str
    parent_run_id: str
    mount_path: str
    attachment_count: int
    traceparent: str
    parent_epoch: int = 0
    mount_path_ignored: bool = False
    thinking: str = ""

    @property
    def spawner(self) -> str:
        """Whose request_id it is: that of the session whose run spawns, or of all clients of the tenant, where it is empty."""
        return self.parent_session_id if self.parent_run_id else ""


@dataclass(frozen=True, slots=True)
class Parent:
    """What a spawn needs to know of its parent."""

    session_id: str
    state: SessionState
    agent: AgentProfile
    ancestor_ids: tuple[str, ...]
    live_child_count: int
    spawn_count: int = 0


def check_spawn(spawn: Spawn, parent: Parent | None, limits: SpawnLimits, waiting_count: int) -> None:
    """Raises the first refusal that holds for the spawn; nothing has been created yet."""
    if spawn.runtime == "EXTERNAL" and spawn.attachment_count:
        raise MeshError(
            Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME,
            "a session with runtime EXTERNAL takes no attachments; hand the files over another way",
            facts={"attachment_count": spawn.attachment_count},
        )
    if spawn.context == "FORK" and parent is None:
        raise MeshError(Reason.FORK_WITHOUT_PARENT, "context FORK copies from a parent, and this spawn has none")
    if parent is not None:
        _check_parent(spawn, parent, limits)
    check_queue(waiting_count, limits)


def check_queue(waiting_count: int, limits: SpawnLimits) -> None:
    """Raises RUN_QUEUE_FULL where as many runs of the tenant wait as may."""
    if waiting_count >= limits.max_queued_run_count:
        raise MeshError(
            Reason.RUN_QUEUE_FULL,
            "the tenant has as many waiting runs as it may; call again later",
            retry_after_seconds=1.0,
            facts={"limit": limits.max_queued_run_count, "waiting": waiting_count},
        )


MAX_WAITING_MESSAGES = 1000
MAX_WAITING_BYTES = 16 * 1024 * 1024


def check_inbox(waiting_count: int, waiting_bytes: int, text: str) -> None:
    """Raises INBOX_FULL where another message would be one too many of those that were sent and wait, or would make them too large together."""
    size_bytes = len(text.encode())
    if waiting_count < MAX_WAITING_MESSAGES and waiting_bytes + size_bytes <= MAX_WAITING_BYTES:
        return
    raise MeshError(
        Reason.INBOX_FULL,
        "as many messages wait in the session's inbox as may; send again when its run has read some",
        retry_after_seconds=1.0,
        facts={
            "waiting": waiting_count,
            "limit": MAX_WAITING_MESSAGES,
            "waiting_bytes": waiting_bytes,
            "size_bytes": size_bytes,
            "limit_bytes": MAX_WAITING_BYTES,
        },
    )


def _check_parent(spawn: Spawn, parent: Parent, limits: SpawnLimits) -> None:
    if parent.state is not SessionState.ACTIVE:
        raise MeshError(
            Reason.SESSION_CLOSED,
            "the parent session is not active, so it cannot spawn",
            facts={"session_id": parent.session_id, "state": parent.state},
        )
    allowed = parent.agent.spawnable_agents
    if EVERY_AGENT not in allowed and spawn.agent_id not in allowed:
        raise MeshError(
            Reason.AGENT_NOT_SPAWNABLE,
            f"agent {parent.agent.agent_id} may not spawn agent {spawn.agent_id}",
            facts={"agent_id": spawn.agent_id, "parent_agent_id": parent.agent.agent_id},
        )
    depth = len(parent.ancestor_ids) + 1
    if depth > limits.max_spawn_depth:
        raise MeshError(
            Reason.SPAWN_DEPTH_EXCEEDED,
            f"the session would be nested {depth} deep, and the limit is {limits.max_spawn_depth}",
            facts={"limit": limits.max_spawn_depth, "depth": depth},
        )
    if 0 < limits.max_spawn_count <= parent.spawn_count:
        raise MeshError(
            Reason.SPAWN_COUNT_EXCEEDED,
            "the parent has spawned as many children in its life as it may",
            facts={"limit": limits.max_spawn_count, "spawned": parent.spawn_count},
        )
    if parent.live_child_count >= limits.max_live_child_count:
        raise MeshError(
            Reason.CHILDREN_LIMIT_EXCEEDED,
            "the parent has as many live children as it may; wait for one to end",
            retry_after_seconds=1.0,
            facts={"limit": limits.max_live_child_count, "live": parent.live_child_count},
        )


def check_new_agent(agent_count: int) -> None:
    """Raises AGENT_COUNT_EXCEEDED where a tenant of so many agents may have no more."""
    if agent_count >= MAX_AGENT_COUNT:
        raise MeshError(
            Reason.AGENT_COUNT_EXCEEDED,
            "the tenant has as many agents as it may; replace one of them, or use another tenant for more",
            facts={"limit": MAX_AGENT_COUNT, "agents": agent_count},
        )


@dataclass(frozen=True, slots=True)
class SpawnFailure:
    """Why a spawn was undone, kept so that a repeat answers the same."""

    step: str
    reason: str
    message: str
    status: str
    facts: dict[str, str]

    @classmethod
    def of(cls, step: str, error: MeshError) -> "SpawnFailure":
        facts = {storable(name): storable(value) for name, value in error.facts.items()}
        return cls(step, error.reason, storable(error.message), error.status, facts)

    @classmethod
    def at(cls, step: str, message: str) -> "SpawnFailure":
        """A spawn that fails at the step for no fault of the caller."""
        return cls.of(step, MeshError(Reason.SPAWN_FAILED, message, facts={"step": step}))

    def as_error(self) -> MeshError:
        """What the caller is told, and told again."""
        return MeshError(Reason(self.reason), self.message, status=Status(self.status), facts=self.facts)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends. `is_masked`: there is no secret in its texts."""

    state: RunState
    result_text: str = ""
    error_reason: str = ""
    error_message: str = ""
    usage: dict[str, int] | None = None
    draft_entry_id: str = ""
    is_masked: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """A run that calls, by a token that was made when it was claimed at this epoch; and its session."""

    session_id: str
    run_id: str
    epoch: int


def masks_secrets(settings: Mapping[str, object]) -> bool:
    """Whether a tenant's stored settings say that secrets are masked."""
    transcripts = settings.get("transcripts")
    return isinstance(transcripts, dict) and bool(transcripts.get("mask_secrets"))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what has ended is kept; a `delete_after` of None is for ever."""

    archive_after: timedelta = DEFAULT_ARCHIVE_AFTER
    delete_after: timedelta | None = None


def retention_of(settings: Mapping[str, object]) -> Retention:
    """What a tenant's stored settings say; what is absent or 0 has its default."""

    def duration(name: str) -> timedelta | None:
        value = settings.get(name)  # Stored as JSON writes a duration: seconds, then `s`.
        return timedelta(seconds=float(value[:-1])) or None if isinstance(value, str) else None

    return Retention(duration("archive_after") or DEFAULT_ARCHIVE_AFTER, duration("delete_after"))


class DeletionStep(StrEnum):
    """KILL what lives -> SETTLE what was under way -> our own ROWS -> what PEERS keep -> DONE."""

    KILL = "KILL"
    SETTLE = "SETTLE"
    ROWS = "ROWS"
    PEERS = "PEERS"
    DONE = "DONE"


def announcement(session_id: str, label: str, ending: Ending) -> str:
    """What the parent's model reads of a child's end."""
    name = f"{session_id} ({label})" if label else session_id
    if ending.state is RunState.SUCCEEDED:
        return f"Session {name} has finished. Its result:\n\n{ending.result_text}"
    return f"Session {name} has ended without a result: {ending.state}, {ending.error_reason}. {ending.error_message}".rstrip()


def announce_key(session_id: str, run_id: str) -> str:
    """Names the one announcement of a child's run."""
    return f"announce:v1:{session_id}:{run_id}"


def message_key(request_id: str, sender_session_id: str) -> str:
    """Names the one message sent under a request_id, by a client or by the runs of the sender's session, as long as it is kept."""
    return f"run_message:v1:{sender_session_id}:{request_id}" if sender_session_id else f"message:v1:{request_id}"


def unique_key(key: str, child_session_id: str, create_time: datetime) -> str:
    """Names a message for good. A child's result has such a name; another's is that of its request_id, which may be used again some day."""
    return key if child_session_id else f"{key}:{(create_time - _EPOCH) // timedelta(microseconds=1)}"


def releases_attachments(cleanup: str, *, retain_on_session_keep: bool) -> bool:
    """Whether a session's files go when it ends."""
    return cleanup == "DELETE" or not retain_on_session_keep


def mount_path_of(hint: str) -> str:
    """The caller's hint if it is made of harmless characters; empty otherwise. It is shown, never used as a path."""
    return hint if _MOUNT_PATH.fullmatch(hint) else ""


def mount_note(mount_path: str) -> str:
    """What a hint adds to the note about the files; it is made of harmless characters. Empty without one."""
    if not mount_path:
        return ""
    return f"\nWhoever sent them speaks of them as `{mount_path}`: a name, and no place where they are."


def storable(text: str) -> str:
    """The text without NUL, which PostgreSQL cannot store."""
    return text.replace("\x00", "\ufffd")
