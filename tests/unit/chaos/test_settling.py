"""The mesh is not at rest while something waits or runs."""

import pytest

from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.settling import unsettled


@pytest.mark.parametrize(
    ("state", "is_read", "count"), [("ACTIVE", False, 1), ("ACTIVE", True, 0), ("CLOSED", False, 0)]
)
def test_unread_message_to_an_active_session_is_unsettled(state: str, *, is_read: bool, count: int) -> None:
    sessions = [{"session_id": "ses_1", "state": state}]
    message = {"session_id": "ses_1", "key": "message:v1:r", "acknowledge_time": "now" if is_read else None}
    assert len(unsettled(Facts({"sessions": sessions, "messages": [message]}))) == count
