"""The table of sessions: one line for each, with what a person wants to know first."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.errors.v1.reason_pb2 import REASON_UNKNOWN_MODEL
from spawnmesh.session.v1 import session_pb2
from spawnmesh_command.cli.session_table import print_sessions

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
WIDE, NARROW = 160, 80


def session(
    number: int, state: Any, *, age: timedelta, took: timedelta | None = None, **run: Any
) -> session_pb2.Session:
    """Return a closed session whose run has been claimed, and has ended if it `took` a time."""
    one = session_pb2.Session(
        session_id=f"ses_{number:026}", state=session_pb2.SESSION_STATE_CLOSED, agent_id="clerk"
    )
    one.create_time.FromDatetime(NOW - age)
    one.latest_run.MergeFrom(session_pb2.Run(state=state, **run))
    one.latest_run.start_time.FromDatetime(NOW - age)
    if took is not None:
        one.latest_run.end_time.FromDatetime(NOW - age + took)
    return one


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Print the sessions in a terminal of this width, and return the words of each line."""

    def show(width: int, *sessions: session_pb2.Session) -> list[list[str]]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("spawnmesh_command.cli.show._PIPED_WIDTH", width)
        print_sessions(sessions, NOW)
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return show


DONE = session(
    1,
    session_pb2.RUN_STATE_SUCCEEDED,
    age=timedelta(minutes=3),
    took=timedelta(seconds=1.25),
    usage=TokenUsage(input_token_count=1200, output_token_count=34, cost_micros=5_000),
)
FAILED = session(
    2,
    session_pb2.RUN_STATE_FAILED,
    age=timedelta(days=2),
    took=timedelta(hours=1, seconds=2),
    error_reason=REASON_UNKNOWN_MODEL,
)
RUNNING = session(3, session_pb2.RUN_STATE_RUNNING, age=timedelta(seconds=45))


def test_a_line_says_how_long_it_took_and_what_it_cost(printed: Any) -> None:
    head, done, failed, running = printed(WIDE, DONE, FAILED, RUNNING)
    assert head == ["session", "state", "agent", "age", "took", "tokens", "cost", "reason"]
    assert done == [DONE.session_id, "SUCCEEDED", "clerk", "3m", "1.2s", "1,234", "0.0050"]
    assert failed == [FAILED.session_id, "FAILED", "clerk", "2d", "1h2s", "UNKNOWN_MODEL"]
    assert running == [RUNNING.session_id, "RUNNING", "clerk", "45s", "45s"]


def test_a_narrow_terminal_has_a_line_for_each_too(printed: Any) -> None:
    head, *lines = printed(NARROW, DONE, FAILED)
    assert head == ["session", "state", "age", "took", "reason"]
    assert lines[1] == [FAILED.session_id, "FAILED", "2d", "1h2s", "UNKNOWN_MODEL"]


def test_an_open_session_says_so(printed: Any) -> None:
    one = session_pb2.Session()
    one.CopyFrom(DONE)
    one.state = session_pb2.SESSION_STATE_ACTIVE
    assert printed(WIDE, one)[1][1:3] == ["SUCCEEDED,", "open"]


def test_a_session_without_a_run_has_its_own_state_and_reason(printed: Any) -> None:
    one = session_pb2.Session(
        session_id="ses_1",
        state=session_pb2.SESSION_STATE_SPAWN_FAILED,
        failure_reason=REASON_UNKNOWN_MODEL,
        label="nightly",
    )
    assert printed(WIDE, one) == [
        ["session", "state", "label", "reason"],
        ["ses_1", "SPAWN_FAILED", "nightly", "UNKNOWN_MODEL"],
    ]


def test_what_waits_says_what_to_type(printed: Any) -> None:
    states = session_pb2.RUN_STATE_WAITING_APPROVAL, session_pb2.RUN_STATE_WAITING_BUDGET
    *_, approval, budget = printed(WIDE, *(session(1, state, age=timedelta()) for state in states))
    assert " ".join(approval) == "runs that wait for an approval: 1; see `spawnmesh approvals list`"
    assert " ".join(budget) == "runs that wait for a budget: 1; see `spawnmesh budget SESSION_ID`"
