"""Approval policies in sentences."""

from datetime import timedelta

import pytest
from spawnmesh_console.domain.agents import approval_sentences, approval_summary


def test_without_a_policy_only_questions_wait() -> None:
    assert approval_sentences((), has_destructive=False, timeout=None, on_expiry="") == (
        "No call of a tool needs an approval.",
        "A question waits for 24 h. Then the answer is no, and the run goes on.",
    )


def test_tools_and_beginnings_of_names_are_told_apart() -> None:
    sentences = approval_sentences(
        ("pay", "delete_*", "mail"), has_destructive=True, timeout=timedelta(minutes=90), on_expiry="FAIL"
    )
    assert sentences == (
        "A person must approve calls of pay, tools whose names begin with delete_ and mail.",
        "A person must approve calls of MCP tools, unless the tool is known to change nothing.",
        "A call and a question wait for 90 min. Then the run fails.",
    )


def test_all_tools_include_those_of_mcp_servers() -> None:
    sentences = approval_sentences(("*", "pay"), has_destructive=True, timeout=None, on_expiry="DENY")
    assert sentences[0] == "A person must approve every call of a tool."
    assert len(sentences) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1.0 s"), (90, "1 min 30 s"), (3600, "1 h"), (86_400, "24 h"), (2_592_000, "30 days")],
)
def test_a_time_to_wait_has_the_unit_that_fits(seconds: int, words: str) -> None:
    timeout = timedelta(seconds=seconds)
    (_, waits) = approval_sentences((), has_destructive=False, timeout=timeout, on_expiry="")
    assert waits.startswith(f"A question waits for {words}.")


def test_the_summary_is_short() -> None:
    assert approval_summary((), has_destructive=False) == ""
    assert approval_summary(("a", "b*"), has_destructive=True) == "a, b*; destructive MCP tools"


def test_an_escalation_is_said() -> None:
    (_, waits) = approval_sentences((), has_destructive=False, timeout=None, on_expiry="ESCALATE")
    assert "Then webhooks are told, and the wait begins once more." in waits
