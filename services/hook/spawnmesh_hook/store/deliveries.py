"""The delivery log: one row for each call of a plugin."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import HookKind

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A call of a plugin. `error` is empty, or says without content why the call failed."""

    delivery_id: str
    plugin: str
    hook: HookKind
    session_id: str
    run_id: str
    start_time: datetime
    latency: timedelta
    decision: str
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DeliveryQuery:
    """The filter of a list of deliveries. Empty texts do not filter.

    `before_time` and `before_id` name the last row of the previous page.
    """

    session_id: str
    run_id: str
    plugin: str
    decision: str
    start_time: datetime
    end_time: datetime
    before_time: datetime
    before_id: str


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
            "decision": delivery.decision,
            "error": delivery.error,
            "attempt": delivery.attempt,
        },
    )


async def list_deliveries(
    connection: Connection, tenant_id: str, query: DeliveryQuery, limit: int
) -> list[Delivery]:
    """Return at most `limit` calls, the newest first."""
    parameters = {
        "tenant_id": tenant_id,
        "limit": limit,
        "session_id": query.session_id,
        "run_id": query.run_id,
        "plugin": query.plugin,
        "decision": query.decision,
        "start_time": query.start_time,
        "end_time": query.end_time,
        "before_time": query.before_time,
        "before_id": query.before_id,
    }
    cursor = await connection.execute(_SQL["list_deliveries"], parameters)
    return [Delivery(**{**row, "hook": HookKind(row["hook"])}) for row in await cursor.fetchall()]
