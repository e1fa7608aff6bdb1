"""Rows of the tables as domain values."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from psycopg import AsyncCursor
from spawnmesh_postgres.rows import Row

from spawnmesh_session.domain.agents import AgentProfile
from spawnmesh_session.domain.runs import Run, RunDelay, RunOutputs, RunState, UngrantedRevision
from spawnmesh_session.domain.sessions import Session, SessionMode, SessionState
from spawnmesh_session.domain.spawns import SpawnFailure

MAX_LIST_BYTES = 3 * 1024 * 1024
"""Rows of one list. A response must be smaller than the 4 MiB that gRPC accepts by default."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingRow(Generic[T]):
    """The result of a statement that was sent in a pipeline.

    Fetch it later, also after the block.
    """

    cursor: AsyncCursor[Row]
    convert: Callable[[Row], T]

    async def fetch(self) -> T | None:
        """Return the row as a value; None if the statement returned no row."""
        row = await self.cursor.fetchone()
        return None if row is None else self.convert(row)


def time_of(value: datetime | str | None) -> datetime | None:
    """Return the time of a column, which is text in JSON."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def run_of(row: Row) -> Run:
    """Convert a row of `runs`, or the JSON of one."""
    return Run(
        run_id=row["run_id"],
        session_id=row["session_id"],
        state=RunState(row["state"]),
        epoch=row["epoch"],
        first_epoch=row["first_epoch"],
        attempt_count=row["attempt_count"],
        draft_entry_id=row["draft_entry_id"],
        decided_entry_id=row["decided_entry_id"],
        decided_text_key=row["decided_text_key"],
        result_text=row["result_text"],
        error_reason=row["error_reason"],
        error_message=row["error_message"],
        usage=row["usage"],
        revision_count=row["revision_count"],
        deadline_time=_required(time_of(row["deadline_time"])),
        queue_time=_required(time_of(row["queue_time"])),
        start_time=time_of(row["start_time"]),
        end_time=time_of(row["end_time"]),
        delay=RunDelay(
            count=row["delay_count"],
            reason=row["delay_reason"],
            message=row["delay_message"],
            not_before_time=time_of(row["not_before_time"]),
        ),
        capped_revisions=tuple(UngrantedRevision(**capped) for capped in row["capped_revisions"]),
        finalized_by=tuple(row["finalized_by"]),
        superseded_entry_ids=tuple(row["superseded_entry_ids"]),
        runner_id=row["runner_id"],
        interrupt_time=time_of(row["interrupt_time"]),
        approval_count=row["approval_count"],
        approval_id=row["approval_id"],
        budget_session_id=row["budget_session_id"],
        wait_time=time_of(row["wait_time"]),
        counted_time=time_of(row["counted_time"]),
        uncounted_time=timedelta(milliseconds=row["uncounted_millis"]),
        outputs=RunOutputs(
            begun_count=row["output_begun_count"],
            set_count=row["output_set_count"],
            file_count=row["output_file_count"],
            total_bytes=row["output_total_bytes"],
        ),
        first_queue_time=_required(time_of(row["first_queue_time"])),
        reported_event_count=row["reported_event_count"],
    )


def session_of(row: Row) -> Session:
    """Convert a row of `sessions`, with `latest_run` if the statement returned it."""
    latest_run = row.get("latest_run")
    return Session(
        session_id=row["session_id"],
        state=SessionState(row["state"]),
        agent_id=row["agent_id"],
        agent_version=row["agent_version"],
        label=row["label"],
        model=row["model"],
        mode=SessionMode(row["mode"]),
        context=row["context"],
        cleanup=row["cleanup"],
        runtime=row["runtime"],
        thinking=row["thinking"],
        metadata=row["metadata"],
        parent_session_id=row["parent_session_id"],
        parent_run_id=row["parent_run_id"],
        ancestor_ids=tuple(row["ancestor_ids"]),
        budget_session_ids=tuple(row["budget_session_ids"]),
        spawn_count=row["spawn_count"],
        run_timeout=row["run_timeout"],
        task_hash=row["task_hash"],
        traceparent=row["traceparent"],
        receipt=row["receipt"],
        gate_passed=row["gate_passed"],
        failure=failure_of(row["failure"]),
        create_time=row["create_time"],
        end_time=row["end_time"],
        archive_time=row["archive_time"],
        delete_time=row["delete_time"],
        fork_session_id=row["fork_session_id"],
        fork_seq=row["fork_seq"],
        latest_run=run_of(latest_run) if latest_run else None,
    )


def failure_of(value: dict[str, Any] | None) -> SpawnFailure | None:
    """Convert the column `failure`."""
    return SpawnFailure(**value) if value else None


def agent_of(row: Row) -> AgentProfile:
    """Convert a row of `agents`, or the JSON of one."""
    return AgentProfile(
        agent_id=row["agent_id"],
        system_prompt=row["system_prompt"],
        models=tuple(row["models"]),
        tools=tuple(row["tools"]),
        spawnable_agents=tuple(row["spawnable_agents"]),
        max_turn_count=row["max_turn_count"],
        context_token_budget=row["context_token_budget"],
        thinking=row["thinking"],
        mcp_servers=tuple(row["mcp_servers"]),
        approval=row["approval"],
        version=row["version"],
    )


def _required(value: datetime | None) -> datetime:
    if value is None:
        raise ValueError("a column that is not null is null")
    return value
