"""The failed calls of tenants by hour, model and reason in the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import join_writers

from spawnmesh_model_router.domain.failures import FailureCounts, FailureKey, HourSpan

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class FailureGrouping:
    """The dimensions by which rows are told apart; they are sums over the others."""

    by_hour: bool
    by_model: bool
    by_reason: bool


async def add_failures(
    connection: Connection,
    tenant_id: str,
    failures: Mapping[FailureKey, FailureCounts],
    first_kept: datetime,
) -> None:
    """Add to the tenant's rows, and delete those of the hours before the first one that is kept.

    Store nothing for a purged tenant.
    """
    keys, counts = list(failures), list(failures.values())
    parameters = {
        "tenant_id": tenant_id,
        "hours": [key.hour for key in keys],
        "models": [key.model for key in keys],
        "reasons": [key.reason for key in keys],
        "failures": [one.failures for one in counts],
        "failovers": [one.failovers for one in counts],
        "ends": [one.ends for one in counts],
    }
    await join_writers(connection, tenant_id)
    await connection.execute(_SQL["add_failures"], parameters)
    past = {"tenant_id": tenant_id, "first_kept": first_kept}
    await connection.execute(_SQL["delete_past_hours"], past)


async def list_failures(
    connection: Connection,
    tenant_id: str,
    span: HourSpan,
    grouping: FailureGrouping,
    after: FailureKey | None,
    limit: int,
) -> list[tuple[FailureKey, FailureCounts]]:
    """Return the rows of the span after this one, by hour, model and reason.

    A dimension that is not wanted is that of the first hour, or empty.
    """
    parameters = {
        "tenant_id": tenant_id,
        "first": span.first,
        "last": span.last,
        "by_hour": grouping.by_hour,
        "by_model": grouping.by_model,
        "by_reason": grouping.by_reason,
        "is_first": after is None,
        "after_hour": after.hour if after is not None and grouping.by_hour else span.first,
        "after_model": after.model if after is not None else "",
        "after_reason": after.reason if after is not None else "",
        "limit": limit,
    }
    rows = await (await connection.execute(_SQL["list_failures"], parameters)).fetchall()
    return [
        (
            FailureKey(row["hour_time"].astimezone(UTC), row["model"], row["reason"]),
            FailureCounts(row["failures"], row["failovers"], row["ends"]),
        )
        for row in rows
    ]
