"""Sessions as a table."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table
from rich.text import Text
from spawnmesh.session.v1.session_pb2 import (
    RUN_STATE_WAITING_APPROVAL,
    RUN_STATE_WAITING_BUDGET,
    SESSION_STATE_ACTIVE,
    Run,
    Session,
)
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.budget_texts import time_text

from spawnmesh_command.cli.show import console, plain, run_state, session_state

_COLUMNS = ("session", "state", "agent", "age", "took", "tokens", "cost", "label", "reason")
_NUMBERS = ("age", "took", "tokens", "cost")
_TEXTS = ("label", "reason")
_WIDE_ONLY = ("agent", "tokens", "cost")
_WIDE_CHARS = 100
_ID_CHARS = 30
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def print_sessions(sessions: Sequence[Session], now: datetime) -> None:
    """Print a row for each session, and what to type if runs wait for a person or a budget.

    A column that is empty in every row is left out, and so are some in a narrow terminal.
    """
    if not sessions:
        print("no sessions")
        return
    table = Table(box=None, pad_edge=False)
    rows = [_row(one, now) for one in sessions]
    left_out = _WIDE_ONLY if console().width < _WIDE_CHARS else ()
    kept = [
        place
        for place, name in enumerate(_COLUMNS)
        if name not in left_out and (place < 2 or any(row[place] for row in rows))
    ]
    for place in kept:
        name = _COLUMNS[place]
        table.add_column(
            name,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=name not in _TEXTS,
            overflow="fold" if name in _TEXTS else "ellipsis",
            min_width=_ID_CHARS if name == "session" else None,
        )
    for row in rows:
        table.add_row(*(Text(plain(row[place])) for place in kept))
    console().print(table)
    for state, wait, command in (
        (RUN_STATE_WAITING_APPROVAL, "an approval", "approvals list"),
        (RUN_STATE_WAITING_BUDGET, "a budget", "budget SESSION_ID"),
    ):
        if count := sum(one.latest_run.state == state for one in sessions):
            print(f"runs that wait for {wait}: {count}; see `spawnmesh {command}`")


def _row(session: Session, now: datetime) -> tuple[str, ...]:
    run, usage = session.latest_run, session.latest_run.usage
    tokens = usage.input_token_count + usage.output_token_count
    return (
        session.session_id,
        _state(session),
        session.agent_id,
        _age(now - _time(session.create_time)) if session.HasField("create_time") else "",
        _took(run, now),
        f"{tokens:,}" if tokens else "",
        f"{usage.cost_micros / 1e6:.4f}" if usage.cost_micros else "",
        session.label,
        reason_of(run.error_reason or session.failure_reason) or "",
    )


def _state(session: Session) -> str:
    """Return the state of the newest run, and whether an ended one left the session open."""
    if not session.HasField("latest_run"):
        return session_state(session)
    is_open = session.state == SESSION_STATE_ACTIVE and session.latest_run.HasField("end_time")
    return f"{run_state(session)}, open" if is_open else run_state(session)


def _took(run: Run, now: datetime) -> str:
    """Return the time of the run from its first claim to its end, or until now."""
    if not run.HasField("start_time"):
        return ""
    span = (_time(run.end_time) if run.HasField("end_time") else now) - _time(run.start_time)
    seconds = max(span.total_seconds(), 0)
    return time_text(timedelta(seconds=round(seconds, 1 if seconds < 10 else 0)))


def _age(span: timedelta) -> str:
    """Return the time in its largest unit: `3m`."""
    seconds = max(int(span.total_seconds()), 0)
    unit, size = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size}{unit}"


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
