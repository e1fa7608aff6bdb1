"""Budgets of families, the model calls that count in them, and the usage of ended runs."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_session.domain.budgets import (
    FamilyBudget,
    FamilyLimits,
    FamilyUse,
    OpenModelCall,
    RunsTotal,
)

MAX_FAMILY = 10_000
"""The sessions of a family whose usage is summed."""

_SQL = load_statements(__name__)
_PAGE = 1_000
_LARGEST = 9_000_000_000_000_000_000
"""Sums that exceed it are shown as this."""


def _limit_columns(limits: FamilyLimits) -> dict[str, Any]:
    return {f"max_{name}": value for name, value in asdict(limits).items()}


def _budget_of(row: Row) -> FamilyBudget:
    names = FamilyUse.__slots__
    return FamilyBudget(
        session_id=row["session_id"],
        limits=FamilyLimits(**{name: row[f"max_{name}"] for name in (*names, "wait")}),
        used=FamilyUse(**{name: row[f"used_{name}"] for name in names}),
        version=row["version"],
        update_time=row["update_time"],
        updated_by=row["updated_by"],
    )


def _call_of(row: Row) -> OpenModelCall:
    values = {name: row[name] for name in OpenModelCall.__slots__}
    return OpenModelCall(**{**values, "budget_session_ids": tuple(row["budget_session_ids"])})


async def insert_budget(
    connection: Connection, tenant_id: str, session_id: str, limits: FamilyLimits
) -> None:
    """Insert the budget of a session that the transaction has inserted; nothing if it has not."""
    values = {"tenant_id": tenant_id, "session_id": session_id, **_limit_columns(limits)}
    await connection.execute(_SQL["insert_budget"], values)


async def list_budgets(
    connection: Connection, tenant_id: str, session_ids: Sequence[str], *, locks: bool = False
) -> list[FamilyBudget]:
    """Return the budgets of these sessions in this order, locked or not. Some may be deleted.

    Locks follow those of the session and of the run.
    """
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    statement = _SQL["lock_budgets" if locks else "list_budgets"]
    rows = await (await connection.execute(statement, values)).fetchall()
    found = {row["session_id"]: _budget_of(row) for row in rows}
    return [found[session_id] for session_id in session_ids if session_id in found]


async def add_use(connection: Connection, tenant_id: str, session_ids: Sequence[str], use: FamilyUse) -> None:
    """Add the use to the locked budgets. Nothing falls below 0."""
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids), **asdict(use)}
    await connection.execute(_SQL["add_use"], values)


async def change_limits(
    connection: Connection,
    tenant_id: str,
    budget: FamilyBudget,
    *,
    updated_by: str,
    now: datetime,
) -> FamilyBudget:
    """Store the limits of the locked budget, and return it with its next version."""
    values = {
        "tenant_id": tenant_id,
        "session_id": budget.session_id,
        **_limit_columns(budget.limits),
        "updated_by": updated_by,
        "now": now,
    }
    [row] = await (await connection.execute(_SQL["change_limits"], values)).fetchall()
    return _budget_of(row)


async def delete_budgets(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> list[str]:
    """Delete the budgets of the sessions, and the model calls of families that have none left.

    Return the ids of these calls. A call of a session that shares the budget of another one stays
    until it is counted.
    """
    values = {"tenant_id": tenant_id, "session_ids": list(session_ids)}
    calls = await (await connection.execute(_SQL["delete_model_calls"], values)).fetchall()
    await connection.execute(_SQL["delete_budgets"], values)
    return [str(row["call_id"]) for row in calls]


async def find_model_call(connection: Connection, tenant_id: str, call_id: str) -> OpenModelCall | None:
    """Return the call, reported or not; None if there is none."""
    values = {"tenant_id": tenant_id, "call_id": call_id}
    row = await (await connection.execute(_SQL["find_model_call"], values)).fetchone()
    return _call_of(row) if row else None


async def insert_model_call(
    connection: Connection, tenant_id: str, call: OpenModelCall, now: datetime
) -> None:
    """Insert an open call of the locked run."""
    chain = list(call.budget_session_ids)
    values = {**asdict(call), "budget_session_ids": chain, "root_session_id": chain[0]}
    await connection.execute(_SQL["insert_model_call"], {"tenant_id": tenant_id, **values, "now": now})


async def lock_family_calls(
    connection: Connection, tenant_id: str, root_session_id: str, run_id: str
) -> list[OpenModelCall]:
    """Lock and return the open calls that are not counted: those of the locked run, and those of
    runs of the family that no runner holds.
    """
    values = {"tenant_id": tenant_id, "root_session_id": root_session_id, "run_id": run_id}
    rows = await (await connection.execute(_SQL["lock_family_calls"], values)).fetchall()
    return [_call_of(row) for row in rows]


async def set_counted(connection: Connection, tenant_id: str, calls: Sequence[OpenModelCall]) -> None:
    """Mark the locked calls as counted."""
    values = {"tenant_id": tenant_id, "call_ids": [call.call_id for call in calls]}
    await connection.execute(_SQL["set_counted"], values)


async def report_model_call(connection: Connection, tenant_id: str, call_id: str) -> OpenModelCall | None:
    """Mark the call as reported, and return it; None if it was reported before."""
    values = {"tenant_id": tenant_id, "call_id": call_id}
    row = await (await connection.execute(_SQL["report_model_call"], values)).fetchone()
    return _call_of(row) if row else None


async def delete_model_call(connection: Connection, tenant_id: str, call_id: str) -> OpenModelCall | None:
    """Delete the call, and return it as it was; None if there is none."""
    values = {"tenant_id": tenant_id, "call_id": call_id}
    row = await (await connection.execute(_SQL["delete_model_call"], values)).fetchone()
    return _call_of(row) if row else None


async def list_family(connection: Connection, tenant_id: str, session_id: str) -> list[str]:
    """Return the session and its descendants, level by level; MAX_FAMILY and one more at most."""
    family, level = [session_id], [session_id]
    while level and len(family) <= MAX_FAMILY:
        values = {
            "tenant_id": tenant_id,
            "session_ids": level,
            "limit": MAX_FAMILY + 1 - len(family),
        }
        rows = await (await connection.execute(_SQL["list_children_of"], values)).fetchall()
        level = [row["session_id"] for row in rows]
        family += level
    return family


async def sum_usage(connection: Connection, tenant_id: str, session_ids: Sequence[str]) -> RunsTotal:
    """Return what the ended runs of the sessions have used."""
    total: dict[str, Any] = {}
    for begin in range(0, len(session_ids), _PAGE):
        values = {
            "tenant_id": tenant_id,
            "session_ids": list(session_ids[begin : begin + _PAGE]),
            "largest": _LARGEST,
        }
        [row] = await (await connection.execute(_SQL["sum_usage"], values)).fetchall()
        for name, value in row.items():
            is_text = isinstance(value, str)
            total[name] = value if is_text else min(total.get(name, 0) + value, _LARGEST)
    ended_run_count = total.pop("ended_run_count")
    return RunsTotal(total, len(session_ids), ended_run_count)
