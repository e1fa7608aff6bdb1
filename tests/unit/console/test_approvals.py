"""The words of the console about approvals."""

import pytest
from spawnmesh_console.domain.approvals import fate


@pytest.mark.parametrize(
    ("policy", "is_escalated", "words"),
    [
        ("FAIL", False, "then the run fails"),
        ("DENY", False, "then the call is denied and the run goes on"),
        ("ESCALATE", False, "then it is escalated: webhooks are told, and it waits for as long again"),
        ("ESCALATE", True, "then the call is denied and the run goes on"),
    ],
)
def test_a_person_reads_what_happens_after_the_time(policy: str, is_escalated: bool, words: str) -> None:
    assert fate(policy, is_call=True, is_escalated=is_escalated) == words
