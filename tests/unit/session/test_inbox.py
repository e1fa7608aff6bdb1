"""Inbox messages: their keys, and the limits on unread messages."""

from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.inbox import (
    MAX_UNREAD_BYTES,
    MAX_UNREAD_MESSAGE_COUNT,
    InboxMessage,
    check_inbox,
    message_key,
)

SENT = datetime(1970, 1, 1, 0, 0, 2, 7, tzinfo=UTC)


def test_key_of_a_message_has_its_time_in_microseconds() -> None:
    message = InboxMessage("message:v1:r1", "text", "", "", SENT)
    assert message.append_request_id == "message:v1:r1:2000007"


def test_key_of_a_child_result_stays_the_same_at_every_time() -> None:
    for time in (SENT, SENT + timedelta(days=1)):
        message = InboxMessage("announce:v1:ses_2:run_2", "text", "ses_2", "SUCCEEDED", time)
        assert message.append_request_id == "announce:v1:ses_2:run_2"


@pytest.mark.parametrize(
    ("unread_count", "unread_bytes"),
    [(0, 0), (MAX_UNREAD_MESSAGE_COUNT - 1, 0), (0, MAX_UNREAD_BYTES - 2)],
)
def test_message_that_reaches_a_limit_is_accepted(unread_count: int, unread_bytes: int) -> None:
    check_inbox(unread_count, unread_bytes, "é")


@pytest.mark.parametrize(
    ("unread_count", "unread_bytes"), [(MAX_UNREAD_MESSAGE_COUNT, 0), (0, MAX_UNREAD_BYTES - 1)]
)
def test_message_beyond_a_limit_is_refused(unread_count: int, unread_bytes: int) -> None:
    with pytest.raises(MeshError) as caught:
        check_inbox(unread_count, unread_bytes, "é")
    assert caught.value.reason is Reason.INBOX_FULL
    assert caught.value.retry_after_seconds == 1.0
    assert caught.value.facts == {
        "waiting": str(unread_count),
        "limit": "1000",
        "waiting_bytes": str(unread_bytes),
        "size_bytes": "2",
        "limit_bytes": "16777216",
    }


def test_each_session_has_its_own_space_of_request_ids() -> None:
    assert message_key("r1", "") == "message:v1:r1"
    assert message_key("r1", "ses_1") == "run_message:v1:ses_1:r1"
