"""The reasons a call can be refused with, spelled as in the contracts (a test compares the two)."""

from enum import StrEnum, auto


class Reason(StrEnum):
    """One reason each; `spawnmesh/errors/v1/reason.proto` says what each means."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        return name

    INVALID_REQUEST = auto()
    TOKEN_MISSING = auto()
    TOKEN_INVALID = auto()
    TOKEN_EXPIRED = auto()
    CALLER_NOT_ALLOWED = auto()
    NOT_FOUND = auto()
    REQUEST_ID_REUSED = auto()
    ALREADY_EXISTS = auto()
    DEADLINE_EXCEEDED = auto()
    DEPENDENCY_UNAVAILABLE = auto()
    DRAINING = auto()
    POOL_EXHAUSTED = auto()
    CONFLICT = auto()
    INTERNAL = auto()
    CANCELLED = auto()
    MESSAGE_TOO_LARGE = auto()
    UNKNOWN_AGENT = auto()
    AGENT_NOT_SPAWNABLE = auto()
    SPAWN_DEPTH_EXCEEDED = auto()
    CHILDREN_LIMIT_EXCEEDED = auto()
    RUN_QUEUE_FULL = auto()
    SPAWN_REFUSED = auto()
    SPAWN_FAILED = auto()
    SPAWN_IN_PROGRESS = auto()
    SESSION_CLOSED = auto()
    RUN_STATE = auto()
    RUN_LEASE_LOST = auto()
    UNKNOWN_TENANT = auto()
    ATTACHMENTS_UNSUPPORTED_RUNTIME = auto()
    FORK_WITHOUT_PARENT = auto()
    ATTACHMENTS_DISABLED = auto()
    ATTACHMENTS_FILE_COUNT_EXCEEDED = auto()
    ATTACHMENTS_INVALID_NAME = auto()
    ATTACHMENTS_DUPLICATE_NAME = auto()
    ATTACHMENTS_INVALID_ENCODING = auto()
    ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE = auto()
    ATTACHMENTS_FILE_BYTES_EXCEEDED = auto()
    ATTACHMENTS_TOTAL_BYTES_EXCEEDED = auto()
    ATTACHMENTS_MATERIALIZATION_FAILED = auto()
    ATTACHMENT_CONTENT_IS_MARKER = auto()
    ATTACHMENT_SET_STATE = auto()
    STORED_HASH_DIFFERS = auto()
    WRITER_CLAIM_LOST = auto()
    UNOWNED_APPEND_NOT_ALLOWED = auto()
    IDEMPOTENCY_KEY_REUSED = auto()
    UNKNOWN_MODEL = auto()
    ALL_CANDIDATES_FAILED = auto()
    MODEL_REFUSED = auto()
    STREAM_BROKEN = auto()
    GRANT_MISSING = auto()
    ENDPOINT_NOT_ALLOWED = auto()
    PLUGIN_FAILED = auto()
