"""Inbox messages: their keys and limits, and the announcement of a child's result."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.runs import RunOutcome, RunState

MAX_UNREAD_MESSAGE_COUNT = 1000
MAX_UNREAD_BYTES = 16 * 1024 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message that the next turn of the session reads.

    A child's result has a `child_session_id`.
    """

    key: str
    text: str
    child_session_id: str
    child_run_state: str
    create_time: datetime

    @property
    def append_request_id(self) -> str:
        """Return a key that no other message of the session ever has.

        The key of a child's result is unique. Another key names a request_id, which may be used
        again after it is forgotten, so the time of the message is added.
        """
        if self.child_session_id:
            return self.key
        return f"{self.key}:{(self.create_time - _EPOCH) // timedelta(microseconds=1)}"


def check_inbox(unread_count: int, unread_bytes: int, text: str) -> None:
    """Raise INBOX_FULL if the sent, unread messages and this text exceed a limit."""
    size_bytes = len(text.encode())
    if unread_count < MAX_UNREAD_MESSAGE_COUNT and unread_bytes + size_bytes <= MAX_UNREAD_BYTES:
        return
    raise MeshError(
        Reason.INBOX_FULL,
        "as many messages wait in the session's inbox as may; send again when its run has read some",
        retry_after_seconds=1.0,
        facts={
            "waiting": unread_count,
            "limit": MAX_UNREAD_MESSAGE_COUNT,
            "waiting_bytes": unread_bytes,
            "size_bytes": size_bytes,
            "limit_bytes": MAX_UNREAD_BYTES,
        },
    )


def announcement(session_id: str, label: str, outcome: RunOutcome, published: str = "") -> str:
    """Return the text about a child's end that the parent's model reads.

    `published` is the note about the files that it published, before its words.
    """
    name = f"{session_id} ({label})" if label else session_id
    files = f" {published}\n\n" if published else " "
    if outcome.state is RunState.SUCCEEDED:
        return f"Session {name} has finished.{files}Its result:\n\n{outcome.result_text}"
    text = f"Session {name} has ended without a result: {outcome.state}, {outcome.error_reason}."
    text = f"{text} {outcome.error_message}".rstrip()
    return f"{text}\n{published}" if published else text


def announcement_key(session_id: str, run_id: str) -> str:
    """Return the key of the one announcement of a child's run."""
    return f"announce:v1:{session_id}:{run_id}"


def message_key(request_id: str, sender_session_id: str) -> str:
    """Return the key of the message with this request_id.

    The clients of a tenant share one space of request ids, and each session has one for its runs.
    """
    if sender_session_id:
        return f"run_message:v1:{sender_session_id}:{request_id}"
    return f"message:v1:{request_id}"
