"""The delivery log: one row for each call of a plugin."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import kwargs_row
from spawnmesh_postgres.bounded_pages import bounded_page, scanned_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.deliveries import Delivery, DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind

MAX_SCANNED_DELIVERIES = 5_000
"""Deliveries at which a page looks, so that its cost is bounded whatever the filter."""

_SQL = load_statements(__name__)


NARROWEST_FIRST = ("run_id", "session_id", "plugin")
"""The columns with an index of their own. The first one that a filter has leads to the rows."""


@dataclass(frozen=True, slots=True)
class DeliveryQuery:
    """The filter of a list of deliveries. Empty texts, and no decision, do not filter.

    `before_time` and `before_id` name the last row of the previous page.
    """

    session_id: str
    run_id: str
    plugin: str
    decision: DeliveryDecision | None
    start_time: datetime
    end_time: datetime
    before_time: datetime
    before_id: str


@dataclass(frozen=True, slots=True)
class DeliveriesPage:
    """Deliveries, newest first.

    The next page begins before `end`, a time and an id. It is None on the last page.
    """

    deliveries: list[Delivery]
    end: tuple[datetime, str] | None


async def insert_delivery(connection: Connection, tenant_id: str, delivery: Delivery) -> None:
    """Log a call."""
    await connection.execute(
        _SQL["insert_delivery"],
        {
            "tenant_id": tenant_id,
            "delivery_id": delivery.delivery_id,
            "plugin": delivery.plugin,
            "hook": delivery.hook.value,
            "session_id": delivery.session_id,
            "run_id": delivery.run_id,
            "start_time": delivery.start_time,
            "latency": delivery.latency,
            "decision": delivery.decision.value,
            "error": delivery.error,
            "attempt": delivery.attempt,
        },
    )


async def list_deliveries(
    connection: Connection,
    tenant_id: str,
    query: DeliveryQuery,
    *,
    page_size: int,
    scan_limit: int = MAX_SCANNED_DELIVERIES,
) -> DeliveriesPage:
    """Return a page of calls.

    The page has fewer calls, or none, if few of the `scan_limit` at which it looks are wanted.
    """
    parameters = {
        "tenant_id": tenant_id,
        "limit": page_size + 1,
        "scan_limit": scan_limit,
        "session_id": query.session_id,
        "run_id": query.run_id,
        "plugin": query.plugin,
        "decision": query.decision.value if query.decision else "",
        "start_time": query.start_time,
        "end_time": query.end_time,
        "before_time": query.before_time,
        "before_id": query.before_id,
    }
    narrowest = next((name for name in NARROWEST_FIRST if parameters[name]), "")
    async with connection.cursor(row_factory=kwargs_row(scanned_row(_delivery_of))) as cursor:
        await cursor.execute(list_statement(narrowest), parameters)
        page, last = bounded_page(await cursor.fetchall(), page_size)
    end = None if last is None else (last.start_time, last.delivery_id)
    return DeliveriesPage(page, end)


def list_statement(narrowest: str) -> str:
    """Return the statement of a page for a filter by this column, or by none of NARROWEST_FIRST."""
    condition = f"and {narrowest} = %({narrowest})s" if narrowest else ""
    return _SQL["list_deliveries"].replace("{narrowest}", condition)


def _delivery_of(*, hook: str, decision: str, **columns: Any) -> Delivery:
    return Delivery(hook=HookKind(hook), decision=DeliveryDecision(decision), **columns)
