"""Messages to webhooks: the log of each, and the jobs that send them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.bounded_pages import bounded_page
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.jobs.job import ClaimedJob, NewJob
from spawnmesh_postgres.jobs.store import enqueue
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.webhooks import (
    KEPT_ATTEMPT_COUNT,
    DeliveryState,
    WebhookAttempt,
    WebhookDelivery,
    WebhookMessage,
    WebhookType,
)
from spawnmesh_hook.store.webhooks import lock_paused_webhook

DELIVER_WEBHOOK = "deliver_webhook"
"""The kind of the jobs. Statements name it too."""
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


async def enqueue_message(
    connection: Connection, tenant_id: str, webhook_id: str, message: WebhookMessage, traceparent: str
) -> bool:
    """Store the message with its job. Return False, changing nothing, for a known message."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, **_message_values(message)}
    if await (await connection.execute(_SQL["insert_message"], values)).fetchone() is None:
        return False
    await enqueue(connection, tenant_id, _job(webhook_id, message.event_id, 1, traceparent))
    return True


async def insert_test(
    connection: Connection, tenant_id: str, webhook_id: str, message: WebhookMessage, attempt: WebhookAttempt
) -> WebhookDelivery:
    """Log a message that was sent once, and return its delivery."""
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        **_message_values(message),
        "state": (DeliveryState.FAILED if attempt.error else DeliveryState.DELIVERED).value,
        "attempts": Jsonb([_attempt_to_json(attempt)]),
    }
    await connection.execute(_SQL["insert_test"], values)
    return await get_delivery(connection, tenant_id, webhook_id, message.event_id)


async def find_delivery(
    connection: Connection, tenant_id: str, webhook_id: str, event_id: str
) -> WebhookDelivery | None:
    """Return the delivery, unless its retention is over."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "event_id": event_id}
    row = await (await connection.execute(_SQL["get_message"], values)).fetchone()
    return _delivery_of(row) if row else None


async def get_delivery(
    connection: Connection, tenant_id: str, webhook_id: str, event_id: str
) -> WebhookDelivery:
    """Return the delivery. Raise NOT_FOUND."""
    found = await find_delivery(connection, tenant_id, webhook_id, event_id)
    if found is None:
        raise not_found("webhook message", event_id)
    return found


async def record_attempt(
    connection: Connection,
    tenant_id: str,
    webhook_id: str,
    delivery: WebhookDelivery,
    attempt: WebhookAttempt,
    state: DeliveryState,
) -> None:
    """Add the attempt to a message that is pending in the same round, which is in `state` then."""
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        "event_id": delivery.message.event_id,
        "round": delivery.round,
        "state": state.value,
        "attempts": Jsonb([_attempt_to_json(attempt)]),
        "kept": KEPT_ATTEMPT_COUNT,
    }
    await connection.execute(_SQL["record_attempt"], values)


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
    rows = await (await connection.execute(_SQL["list_webhook_deliveries"], values)).fetchall()
    page, last = bounded_page(rows, page_size)
    end = None if last is None else (last["event_time"], last["event_id"])
    return WebhookDeliveriesPage([_delivery_of(row) for row in page], end)


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
    rows = await (await connection.execute(_SQL["replay_messages"], values)).fetchall()
    jobs = [_job(webhook_id, row["event_id"], row["round"], traceparent) for row in rows]
    await enqueue(connection, tenant_id, *jobs)
    return len(rows)


async def hold_message(connection: Connection, job: ClaimedJob) -> None:
    """Keep the job until its webhook is resumed. Do nothing if the webhook is not paused."""
    if await lock_paused_webhook(connection, job.tenant_id, job.arguments["webhook_id"]):
        values = {"tenant_id": job.tenant_id, "key": job.key, "claim_id": job.claim_id}
        await connection.execute(_SQL["hold_message"], values)


async def release_held_messages(connection: Connection, tenant_id: str, webhook_id: str) -> None:
    """Make the jobs due that were held while the webhook was paused, and wake the workers."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id}
    await connection.execute(_SQL["release_held_messages"], values)


async def delete_messages_of_webhook(connection: Connection, tenant_id: str, webhook_id: str) -> None:
    """Delete all jobs of the webhook. Its log stays for its retention, and has no reader."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id}
    await connection.execute(_SQL["delete_messages_of_webhook"], values)


def job_key(webhook_id: str, event_id: str, round_number: int) -> str:
    """Return the key of the job that sends the message in this round."""
    return f"{webhook_id} {event_id} {round_number}"


def _job(webhook_id: str, event_id: str, round_number: int, traceparent: str) -> NewJob:
    """Return the job of a round. The job of an earlier round may still be about to end."""
    arguments: dict[str, str | int | bool] = {
        "webhook_id": webhook_id,
        "event_id": event_id,
        "round": round_number,
    }
    return NewJob(DELIVER_WEBHOOK, job_key(webhook_id, event_id, round_number), arguments, traceparent)


def _message_values(message: WebhookMessage) -> dict[str, Any]:
    return {
        "event_id": message.event_id,
        "event_type": message.event_type.value,
        "session_id": message.session_id,
        "run_id": message.run_id,
        "event_time": message.event_time,
        "body": message.body,
    }


def _delivery_of(row: DictRow) -> WebhookDelivery:
    message = WebhookMessage(
        event_id=row["event_id"],
        event_type=WebhookType(row["event_type"]),
        session_id=row["session_id"],
        run_id=row["run_id"],
        event_time=row["event_time"],
        body=row["body"],
    )
    return WebhookDelivery(
        message=message,
        state=DeliveryState(row["state"]),
        queue_time=row["queue_time"],
        end_time=row["end_time"],
        round=row["round"],
        round_attempt_count=row["round_attempt_count"],
        attempt_count=row["attempt_count"],
        attempts=tuple(map(_attempt_from_json, row["attempts"])),
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
