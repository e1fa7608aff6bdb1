"""Messages to webhooks: the log of each webhook, and the job that sends what is due."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.bounded_pages import bounded_page, scanned_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.store import delete
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.webhooks import (
    KEPT_ATTEMPT_COUNT,
    DeliveryState,
    WebhookAttempt,
    WebhookDelivery,
    WebhookMessage,
    WebhookType,
)

DELIVER_WEBHOOK = "deliver_webhook"
"""The kind of the jobs, whose keys are ids of webhooks. Statements name it too."""
MAX_SCANNED_DELIVERIES = 5_000
"""Deliveries at which a page looks, so that its cost is bounded whatever the filter."""

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class WebhookDeliveryQuery:
    """The filter of a list of deliveries. Empty values, and None, do not filter.

    `before_time` and `before_id` name the last row of the previous page.
    """

    session_id: str
    state: DeliveryState | None
    event_type: WebhookType | None
    start_time: datetime
    end_time: datetime
    before_time: datetime
    before_id: str


@dataclass(frozen=True, slots=True)
class WebhookDeliveriesPage:
    """Deliveries, newest event first.

    The next page begins before `end`, a time and an id. It is None on the last page.
    """

    deliveries: list[WebhookDelivery]
    end: tuple[datetime, str] | None


async def enqueue_messages(
    connection: Connection,
    tenant_id: str,
    messages: Sequence[tuple[str, WebhookMessage]],
    traceparent: str,
) -> int:
    """Store messages, each for the webhook with the id, and wake the jobs that send them.

    A known message stays as it is. Return the number of new ones.
    """
    # In one order: of two transactions with the same messages, one waits for the other.
    ordered = sorted(messages, key=lambda one: (one[0], one[1].event_id))
    rows = [{"webhook_id": webhook_id, **_values(message)} for webhook_id, message in ordered]
    cursor = await connection.execute(
        _SQL["insert_messages"], {"tenant_id": tenant_id, "messages": Jsonb(rows)}
    )
    added = [row["webhook_id"] for row in await cursor.fetchall()]
    if added:
        await wake_jobs(connection, tenant_id, added, traceparent)
    return len(added)


async def wake_jobs(
    connection: Connection, tenant_id: str, webhook_ids: Sequence[str], traceparent: str = ""
) -> None:
    """Make the jobs of the webhooks due, or those that a worker has go on once more."""
    values = {
        "tenant_id": tenant_id,
        "webhook_ids": sorted(set(webhook_ids)),  # Always locked in one order.
        "traceparent": traceparent,
    }
    await connection.execute(_SQL["wake_jobs"], values)


async def delete_job(connection: Connection, tenant_id: str, webhook_id: str) -> None:
    """Delete the job of a webhook that was deleted. Its log stays for the retention, unread."""
    await delete(connection, tenant_id, DELIVER_WEBHOOK, webhook_id)


async def insert_test(
    connection: Connection, tenant_id: str, webhook_id: str, message: WebhookMessage, attempt: WebhookAttempt
) -> WebhookDelivery:
    """Log a message that was sent once, and return its delivery."""
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        **_values(message),
        "state": (DeliveryState.FAILED if attempt.error else DeliveryState.DELIVERED).value,
        "attempts": Jsonb([_attempt_to_json(attempt)]),
    }
    await connection.execute(_SQL["insert_test"], values)
    return await get_delivery(connection, tenant_id, webhook_id, message.event_id)


async def get_delivery(
    connection: Connection, tenant_id: str, webhook_id: str, event_id: str
) -> WebhookDelivery:
    """Return the delivery. Raise NOT_FOUND."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "event_id": event_id}
    async with connection.cursor(row_factory=kwargs_row(_delivery_of)) as cursor:
        await cursor.execute(_SQL["get_message"], values)
        delivery = await cursor.fetchone()
    if delivery is None:
        raise not_found("webhook message", event_id)
    return delivery


async def list_due_messages(
    connection: Connection, tenant_id: str, webhook_id: str, limit: int
) -> list[WebhookDelivery]:
    """Return the messages that are due, in the order of their times."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "limit": limit}
    async with connection.cursor(row_factory=kwargs_row(_delivery_of)) as cursor:
        await cursor.execute(_SQL["list_due_messages"], values)
        return await cursor.fetchall()


async def time_to_next(connection: Connection, tenant_id: str, webhook_id: str) -> timedelta | None:
    """Return the time until the next message is due, or zero; None if none is pending."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id}
    row = await (await connection.execute(_SQL["next_attempt_time"], values)).fetchone()
    return max(row["attempt_time"] - row["read_time"], timedelta(0)) if row else None


async def record_attempt(
    connection: Connection,
    tenant_id: str,
    webhook_id: str,
    delivery: WebhookDelivery,
    attempt: WebhookAttempt,
    state: DeliveryState,
    attempt_time: datetime | None,
) -> None:
    """Add the attempt to a message that is pending in the same round, which is in `state` then.

    `attempt_time` is when a PENDING one is due again.
    """
    attempts = [*delivery.attempts, attempt][-KEPT_ATTEMPT_COUNT:]
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        "event_id": delivery.message.event_id,
        "round": delivery.round,
        "state": state.value,
        "attempt_time": attempt_time,
        "end_time": None if state is DeliveryState.PENDING else attempt.start_time + attempt.latency,
        "attempts": Jsonb([_attempt_to_json(one) for one in attempts]),
    }
    await connection.execute(_SQL["record_attempt"], values)


async def expire_messages(
    connection: Connection, tenant_id: str, webhook_id: str, queued_before: datetime, limit: int
) -> int:
    """Give up due messages that were queued before a time; return their number."""
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        "queued_before": queued_before,
        "limit": limit,
    }
    return len(await (await connection.execute(_SQL["expire_messages"], values)).fetchall())


async def list_webhook_deliveries(
    connection: Connection,
    tenant_id: str,
    webhook_id: str,
    query: WebhookDeliveryQuery,
    *,
    page_size: int,
    scan_limit: int = MAX_SCANNED_DELIVERIES,
) -> WebhookDeliveriesPage:
    """Return a page of messages.

    The page has fewer of them, or none, if few of the `scan_limit` at which it looks are wanted.
    """
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        "limit": page_size + 1,
        "scan_limit": scan_limit,
        "session_id": query.session_id,
        "state": query.state.value if query.state else "",
        "event_type": query.event_type.value if query.event_type else "",
        "start_time": query.start_time,
        "end_time": query.end_time,
        "before_time": query.before_time,
        "before_id": query.before_id,
    }
    async with connection.cursor(row_factory=kwargs_row(scanned_row(_delivery_of))) as cursor:
        await cursor.execute(_SQL["list_webhook_deliveries"], values)
        page, last = bounded_page(await cursor.fetchall(), page_size)
    end = None if last is None else (last.message.event_time, last.message.event_id)
    return WebhookDeliveriesPage(page, end)


async def list_failed(
    connection: Connection, tenant_id: str, webhook_id: str, since: datetime, limit: int
) -> list[str]:
    """Return the ids of the oldest messages that were given up, of events since the time.

    A test is not among them: it is sent once.
    """
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "since": since, "limit": limit}
    rows = await (await connection.execute(_SQL["list_failed"], values)).fetchall()
    return [row["event_id"] for row in rows]


async def require_messages(
    connection: Connection, tenant_id: str, webhook_id: str, event_ids: Sequence[str]
) -> None:
    """Raise NOT_FOUND unless the webhook has all of these messages."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "event_ids": list(event_ids)}
    row = await (await connection.execute(_SQL["count_messages"], values)).fetchone()
    if row is None or row["message_count"] != len(event_ids):
        for event_id in event_ids:
            await get_delivery(connection, tenant_id, webhook_id, event_id)


async def replay_messages(
    connection: Connection, tenant_id: str, webhook_id: str, event_ids: Sequence[str], traceparent: str
) -> int:
    """Queue the messages that are not pending, each in a new round; return their number."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "event_ids": list(event_ids)}
    count = (await connection.execute(_SQL["replay_messages"], values)).rowcount
    if count:
        await wake_jobs(connection, tenant_id, [webhook_id], traceparent)
    return count


async def hasten_messages(connection: Connection, tenant_id: str, webhook_id: str) -> None:
    """Make all pending messages of the webhook due, and wake its job."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id}
    await connection.execute(_SQL["hasten_messages"], values)
    await wake_jobs(connection, tenant_id, [webhook_id])


def _values(message: WebhookMessage) -> dict[str, Any]:
    return {
        "event_id": message.event_id,
        "event_type": message.event_type.value,
        "session_id": message.session_id,
        "run_id": message.run_id,
        "event_time": message.event_time.isoformat(),
        "body": message.body,
    }


def _delivery_of(
    *,
    event_id: str,
    event_type: str,
    session_id: str,
    run_id: str,
    event_time: datetime,
    body: str,
    state: str,
    attempts: list[dict[str, Any]],
    **columns: Any,
) -> WebhookDelivery:
    message = WebhookMessage(event_id, WebhookType(event_type), session_id, run_id, event_time, body)
    return WebhookDelivery(
        message=message,
        state=DeliveryState(state),
        attempts=tuple(map(_attempt_from_json, attempts)),
        **columns,
    )


def _attempt_to_json(attempt: WebhookAttempt) -> dict[str, Any]:
    return {
        "start_time": attempt.start_time.isoformat(),
        "latency_seconds": attempt.latency.total_seconds(),
        "status_code": attempt.status_code,
        "error": attempt.error,
    }


def _attempt_from_json(stored: dict[str, Any]) -> WebhookAttempt:
    return WebhookAttempt(
        start_time=datetime.fromisoformat(stored["start_time"]),
        latency=timedelta(seconds=stored["latency_seconds"]),
        status_code=stored["status_code"],
        error=stored["error"],
    )
