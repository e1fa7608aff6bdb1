"""The reasons of refusals and of runs, spelled as in the contracts (a test compares the two)."""

from enum import StrEnum, auto


class Reason(StrEnum):
    """Reasons of a refusal, and of a run that fails or waits.

    `spawnmesh/errors/v1/reason.proto` documents each of them but `UNKNOWN`: a program
    sees that in place of a reason that a newer service sends, and no service uses it.
    """

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
    ROLE_MISSING = auto()
    TOKEN_REVOKED = auto()
    TOKEN_LIFETIME_EXCEEDED = auto()
    PROCESSING_TIME_EXCEEDED = auto()
    RATE_LIMITED = auto()
    UNKNOWN_RPC = auto()
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
    SPAWN_COUNT_EXCEEDED = auto()
    AGENT_COUNT_EXCEEDED = auto()
    INBOX_FULL = auto()
    REVOCATION_COUNT_EXCEEDED = auto()
    MCP_SERVER_COUNT_EXCEEDED = auto()
    ETAG_DIFFERS = auto()
    FORK_SEQ_REFUSED = auto()
    APPROVAL_CLOSED = auto()
    SECRET_NOT_KEPT = auto()
    SESSION_BUDGET_EXCEEDED = auto()
    BUDGET_BELOW_USAGE = auto()
    BUDGET_MISSING = auto()
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
    UPLOAD_CRC_DIFFERS = auto()
    UPLOAD_OFFSET_DIFFERS = auto()
    UPLOAD_SIZE_EXCEEDED = auto()
    UPLOAD_HASH_DIFFERS = auto()
    UPLOAD_INCOMPLETE = auto()
    UPLOAD_TAKEN_OVER = auto()
    DOWNLOAD_URLS_DISABLED = auto()
    ATTACHMENTS_STORED_BYTES_EXCEEDED = auto()
    WRITER_CLAIM_LOST = auto()
    UNOWNED_APPEND_NOT_ALLOWED = auto()
    SESSION_TAKEOVER = auto()
    TRANSCRIPT_DELETED = auto()
    IMPORT_MALFORMED = auto()
    IMPORT_OFFSET_DIFFERS = auto()
    IMPORT_CONTENT_DIFFERS = auto()
    SEARCH_REFUSED = auto()
    TIER_DISABLED = auto()
    UNKNOWN_MODEL = auto()
    ALL_CANDIDATES_FAILED = auto()
    MODEL_REFUSED = auto()
    STREAM_BROKEN = auto()
    BUDGET_EXCEEDED = auto()
    GRANT_MISSING = auto()
    ENDPOINT_NOT_ALLOWED = auto()
    PLUGIN_FAILED = auto()
    ENDPOINT_NOT_REACHED = auto()
    PLUGIN_COUNT_EXCEEDED = auto()
    GATE_COUNT_EXCEEDED = auto()
    WEBHOOK_COUNT_EXCEEDED = auto()
    SCHEDULE_COUNT_EXCEEDED = auto()
    OPERATION_COUNT_EXCEEDED = auto()
    OPERATION_NOT_CANCELLABLE = auto()
    RUN_TIMEOUT = auto()
    ATTEMPTS_EXHAUSTED = auto()
    KILLED = auto()
    RUNNER_ERROR = auto()
    TURN_LIMIT_EXCEEDED = auto()
    OUTPUT_LIMIT_REACHED = auto()
    NO_PROGRESS = auto()
    MCP_SERVER_NOT_OFFERED = auto()
    MCP_SANDBOX_UNAVAILABLE = auto()
    RUNNER_DISK_FULL = auto()
    INTERRUPTED = auto()
    APPROVAL_EXPIRED = auto()
    UNKNOWN = auto()


RUN_REASONS = frozenset(
    {
        Reason.RUN_TIMEOUT,
        Reason.ATTEMPTS_EXHAUSTED,
        Reason.KILLED,
        Reason.RUNNER_ERROR,
        Reason.TURN_LIMIT_EXCEEDED,
        Reason.OUTPUT_LIMIT_REACHED,
        Reason.NO_PROGRESS,
        Reason.MCP_SERVER_NOT_OFFERED,
        Reason.MCP_SANDBOX_UNAVAILABLE,
        Reason.RUNNER_DISK_FULL,
        Reason.INTERRUPTED,
        Reason.APPROVAL_EXPIRED,
    }
)
"""The reasons that only runs have. No call is refused with one of them, so they have no status."""
