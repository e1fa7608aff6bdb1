"""gRPC status codes by name, and the table that maps each reason to its status code."""

from enum import StrEnum

from spawnmesh_core.reasons import Reason


class Status(StrEnum):
    """The gRPC status codes that the mesh uses, with the names that gRPC gives them."""

    CANCELLED = "CANCELLED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


_REASONS: dict[Status, tuple[Reason, ...]] = {
    Status.INVALID_ARGUMENT: (
        Reason.INVALID_REQUEST,
        Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME,
        Reason.FORK_WITHOUT_PARENT,
        Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED,
        Reason.ATTACHMENTS_INVALID_NAME,
        Reason.ATTACHMENTS_DUPLICATE_NAME,
        Reason.ATTACHMENTS_INVALID_ENCODING,
        Reason.ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE,
        Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED,
        Reason.ATTACHMENTS_TOTAL_BYTES_EXCEEDED,
        Reason.ATTACHMENT_CONTENT_IS_MARKER,
        Reason.UPLOAD_CRC_DIFFERS,
        Reason.UPLOAD_SIZE_EXCEEDED,
        Reason.UPLOAD_HASH_DIFFERS,
        Reason.IMPORT_MALFORMED,
        Reason.SEARCH_REFUSED,
        Reason.UNKNOWN_MODEL,
    ),
    Status.UNAUTHENTICATED: (
        Reason.TOKEN_MISSING,
        Reason.TOKEN_INVALID,
        Reason.TOKEN_EXPIRED,
        Reason.TOKEN_REVOKED,
        Reason.TOKEN_LIFETIME_EXCEEDED,
    ),
    Status.PERMISSION_DENIED: (
        Reason.CALLER_NOT_ALLOWED,
        Reason.ROLE_MISSING,
        Reason.AGENT_NOT_SPAWNABLE,
        Reason.SPAWN_REFUSED,
        Reason.UNOWNED_APPEND_NOT_ALLOWED,
    ),
    Status.NOT_FOUND: (Reason.NOT_FOUND,),
    Status.ALREADY_EXISTS: (
        Reason.REQUEST_ID_REUSED,
        Reason.ALREADY_EXISTS,
        Reason.IMPORT_CONTENT_DIFFERS,
    ),
    Status.FAILED_PRECONDITION: (
        Reason.UNKNOWN_AGENT,
        Reason.SPAWN_DEPTH_EXCEEDED,
        Reason.SPAWN_COUNT_EXCEEDED,
        Reason.REVOCATION_COUNT_EXCEEDED,
        Reason.SPAWN_FAILED,
        Reason.FORK_SEQ_REFUSED,
        Reason.APPROVAL_CLOSED,
        Reason.SECRET_NOT_KEPT,
        Reason.BUDGET_BELOW_USAGE,
        Reason.BUDGET_MISSING,
        Reason.SESSION_CLOSED,
        Reason.RUN_STATE,
        Reason.UNKNOWN_TENANT,
        Reason.ATTACHMENTS_DISABLED,
        Reason.ATTACHMENTS_MATERIALIZATION_FAILED,
        Reason.ATTACHMENT_SET_STATE,
        Reason.UPLOAD_OFFSET_DIFFERS,
        Reason.UPLOAD_INCOMPLETE,
        Reason.DOWNLOAD_URLS_DISABLED,
        Reason.TRANSCRIPT_DELETED,
        Reason.IMPORT_OFFSET_DIFFERS,
        Reason.TIER_DISABLED,
        Reason.OPERATION_NOT_CANCELLABLE,
        Reason.MODEL_REFUSED,
        Reason.GRANT_MISSING,
        Reason.ENDPOINT_NOT_ALLOWED,
        Reason.ENDPOINT_NOT_REACHED,
    ),
    Status.RESOURCE_EXHAUSTED: (
        Reason.CHILDREN_LIMIT_EXCEEDED,
        Reason.RUN_QUEUE_FULL,
        Reason.INBOX_FULL,
        Reason.AGENT_COUNT_EXCEEDED,
        Reason.MCP_SERVER_COUNT_EXCEEDED,
        Reason.PLUGIN_COUNT_EXCEEDED,
        Reason.GATE_COUNT_EXCEEDED,
        Reason.WEBHOOK_COUNT_EXCEEDED,
        Reason.SCHEDULE_COUNT_EXCEEDED,
        Reason.OPERATION_COUNT_EXCEEDED,
        Reason.ATTACHMENTS_STORED_BYTES_EXCEEDED,
        Reason.POOL_EXHAUSTED,
        Reason.RATE_LIMITED,
        Reason.MESSAGE_TOO_LARGE,
        Reason.PROCESSING_TIME_EXCEEDED,
        Reason.BUDGET_EXCEEDED,
        Reason.SESSION_BUDGET_EXCEEDED,
    ),
    Status.ABORTED: (
        Reason.CONFLICT,
        Reason.ETAG_DIFFERS,
        Reason.SPAWN_IN_PROGRESS,
        Reason.RUN_LEASE_LOST,
        Reason.WRITER_CLAIM_LOST,
        Reason.UPLOAD_TAKEN_OVER,
        Reason.SESSION_TAKEOVER,
        Reason.STREAM_BROKEN,
    ),
    Status.UNAVAILABLE: (
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DRAINING,
        Reason.ALL_CANDIDATES_FAILED,
        Reason.PLUGIN_FAILED,
    ),
    Status.DEADLINE_EXCEEDED: (Reason.DEADLINE_EXCEEDED,),
    Status.CANCELLED: (Reason.CANCELLED,),
    Status.DATA_LOSS: (Reason.STORED_HASH_DIFFERS,),
    Status.INTERNAL: (Reason.INTERNAL,),
    Status.UNIMPLEMENTED: (Reason.UNKNOWN_RPC,),
}

STATUS_OF: dict[Reason, Status] = {
    reason: status for status, reasons in _REASONS.items() for reason in reasons
}
