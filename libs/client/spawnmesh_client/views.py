"""Views of what the mesh returns: typed, frozen, and without protobuf.

The fields are named as in the contracts, which say what each one means. Times are in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import auto

from spawnmesh_core.reasons import Reason

from spawnmesh_client.view_of import Word


class SessionState(Word):
    """The states of a session."""

    UNKNOWN = auto()
    PROVISIONING = auto()
    ACTIVE = auto()
    CLOSED = auto()
    SPAWN_FAILED = auto()

    @property
    def is_terminal(self) -> bool:
        """True if the session accepts no more runs."""
        return self in (SessionState.CLOSED, SessionState.SPAWN_FAILED)


class RunState(Word):
    """The states of a run."""

    UNKNOWN = auto()
    QUEUED = auto()
    RUNNING = auto()
    FINALIZING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    TIMED_OUT = auto()
    KILLED = auto()
    INTERRUPTED = auto()
    WAITING_APPROVAL = auto()
    WAITING_BUDGET = auto()

    @property
    def is_terminal(self) -> bool:
        """True if the run has ended."""
        return self in (
            RunState.SUCCEEDED,
            RunState.FAILED,
            RunState.TIMED_OUT,
            RunState.KILLED,
            RunState.INTERRUPTED,
        )


class SessionMode(Word):
    """The time that a session stays open: for one run, or until it is closed."""

    UNKNOWN = auto()
    RUN = auto()
    SESSION = auto()


class ContextMode(Word):
    """The part of its parent's transcript that a session begins with."""

    UNKNOWN = auto()
    ISOLATED = auto()
    FORK = auto()


class Cleanup(Word):
    """The fate of a session's files at its end."""

    UNKNOWN = auto()
    DELETE = auto()
    KEEP = auto()


class Runtime(Word):
    """The kind of runner that executes a session."""

    UNKNOWN = auto()
    SUBAGENT = auto()
    EXTERNAL = auto()


class ThinkingLevel(Word):
    """The effort of a model before it answers."""

    UNKNOWN = auto()
    OFF = auto()
    MINIMAL = auto()
    LOW = auto()
    MEDIUM = auto()
    HIGH = auto()


class EventKind(Word):
    """The kinds of session events."""

    UNKNOWN = auto()
    PROVISIONING = auto()
    RUN = auto()
    REVISION = auto()
    CHILD_ANNOUNCED = auto()
    SPAWN_FAILED = auto()
    CLOSED = auto()
    REVISION_CAPPED = auto()
    FILES_PUBLISHED = auto()
    BUDGET_CHANGED = auto()
    CHILD_SPAWNED = auto()
    MODEL_FAILED = auto()
    HOOK_DECIDED = auto()


class ReceiptWarning(Word):
    """A part of a spawn that was ignored."""

    UNKNOWN = auto()
    MOUNT_PATH_IGNORED = auto()


class SetState(Word):
    """The states of an attachment set."""

    UNKNOWN = auto()
    STAGED = auto()
    ATTACHED = auto()
    RELEASED = auto()


class UploadState(Word):
    """The states of an upload."""

    UNKNOWN = auto()
    OPEN = auto()
    COMPLETE = auto()


class EntryKind(Word):
    """The kinds of transcript entries."""

    UNKNOWN = auto()
    HEADER = auto()
    MESSAGE = auto()
    NOTE = auto()
    LABEL = auto()
    MODEL_CHANGE = auto()
    COMPACTION = auto()
    BRANCH_SUMMARY = auto()
    CUSTOM = auto()
    OPAQUE = auto()
    MIRROR = auto()


class Role(Word):
    """The speaker of a message."""

    UNKNOWN = auto()
    USER = auto()
    ASSISTANT = auto()
    TOOL_RESULT = auto()
    BASH_EXECUTION = auto()
    CUSTOM = auto()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of model calls. The cost is in millionths of the currency of the mesh."""

    input_token_count: int = 0
    output_token_count: int = 0
    cache_read_token_count: int = 0
    cache_write_token_count: int = 0
    cost_micros: int = 0
    price_version: str = ""

    @property
    def cost(self) -> float:
        """The cost in units of the currency."""
        return self.cost_micros / 1e6


@dataclass(frozen=True, slots=True)
class RunDelay:
    """The last time that something the run needs was unavailable."""

    reason: Reason | None
    message: str
    not_before_time: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a session."""

    run_id: str
    session_id: str
    state: RunState
    attempt_count: int
    result_text: str
    error_reason: Reason | None
    error_message: str
    usage: Usage
    queue_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    revision_count: int
    delay: RunDelay | None
    interrupt_time: datetime | None
    approval_id: str
    output_file_count: int
    output_total_bytes: int
    budget_session_id: str
    reported_event_count: int


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file of an attachment set."""

    name: str
    size_bytes: int
    sha256: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The entry of another session up to which a session begins with a copy."""

    session_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class AttachmentReceipt:
    """The receipt of the attachments of a spawn."""

    set_id: str
    count: int
    total_bytes: int
    files: tuple[AttachedFile, ...]
    rel_dir: str
    mount_path: str
    warnings: tuple[ReceiptWarning, ...]


@dataclass(frozen=True, slots=True)
class AttachmentSet:
    """The files that were attached to one session, or that a run stored to publish them.

    `run_id` is this run. It is empty for the attachments of a spawn. An interrupted call can leave
    files that are stored but not published: `Session.outputs` has those that are.
    """

    set_id: str
    session_id: str
    state: SetState
    files: tuple[AttachedFile, ...]
    total_bytes: int
    create_time: datetime | None
    run_id: str


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A file in the tenant's store, to attach until `expire_time`."""

    upload_id: str
    name: str
    size_bytes: int
    sha256: str
    mime_type: str
    state: UploadState
    expire_time: datetime | None


@dataclass(frozen=True, slots=True)
class DownloadUrl:
    """A URL from which anybody can download one file until `expire_time`."""

    url: str
    expire_time: datetime | None


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """An event in the life of a session. `number` is its place there, to resume behind it.

    `set_id` is the output set of FILES_PUBLISHED. `child_session_id` is the child of CHILD_SPAWNED
    and CHILD_ANNOUNCED.
    """

    number: int
    event_time: datetime | None
    kind: EventKind
    run_id: str
    run_state: RunState | None
    child_session_id: str
    detail: str
    set_id: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in a message of a model, with its block in JSON."""

    tool_call_id: str
    name: str
    block_json: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a transcript.

    `text` is the text of a message, note, summary or branch summary. `role` is of messages.
    """

    seq: int
    entry_id: str
    create_time: datetime | None
    token_count: int
    kind: EntryKind
    role: Role | None
    text: str
    tool_calls: tuple[ToolCall, ...]
    tool_name: str
    is_error: bool
    model: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A place in a transcript that a search found."""

    session_id: str
    entry_id: str
    seq: int
    kind: EntryKind
    create_time: datetime | None
    path: str
    byte_offset: int
    snippet: str
    file_id: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """The counts of a deletion."""

    deleted_session_count: int
    killed_run_count: int


@dataclass(frozen=True, slots=True)
class SessionFields:
    """The fields of a session."""

    session_id: str
    state: SessionState
    agent_id: str
    agent_version: int
    label: str
    parent_session_id: str
    parent_run_id: str
    depth: int
    mode: SessionMode
    context: ContextMode
    cleanup: Cleanup
    runtime: Runtime
    create_time: datetime | None
    end_time: datetime | None
    latest_run: Run | None
    receipt: AttachmentReceipt | None
    fork: ForkPoint | None
    trace_id: str
    failure_reason: Reason | None
    archive_time: datetime | None
    thinking: ThinkingLevel | None
    metadata: Mapping[str, str]
    budget_session_ids: tuple[str, ...]
