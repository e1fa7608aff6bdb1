"""The tenant's webhooks."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from psycopg.rows import kwargs_row
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.webhooks import Webhook, WebhookAttempt, WebhookType

_SQL = load_statements(__name__)


async def lock_webhook_tenant(connection: Connection, tenant_id: str) -> int | None:
    """Return the version of the tenant's settings; None if the tenant is unknown.

    Until the transaction ends, no other one adds a webhook of the tenant.
    """
    cursor = await connection.execute(_SQL["lock_webhook_tenant"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return row["settings_version"] if row else None


async def count_webhooks(connection: Connection, tenant_id: str) -> int:
    """Return the number of the tenant's webhooks."""
    cursor = await connection.execute(_SQL["count_webhooks"], {"tenant_id": tenant_id})
    row = await cursor.fetchone()
    return row["webhook_count"] if row else 0


async def find_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook | None:
    """Return the webhook, if there is one."""
    return await _one(connection, "get_webhook", tenant_id=tenant_id, name=name)


async def get_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook:
    """Return the webhook. Raise NOT_FOUND."""
    return _require(await find_webhook(connection, tenant_id, name), name)


async def find_webhook_by_id(connection: Connection, tenant_id: str, webhook_id: str) -> Webhook | None:
    """Return the webhook of a message, unless it was deleted."""
    return await _one(connection, "get_webhook_by_id", tenant_id=tenant_id, webhook_id=webhook_id)


async def lock_webhook_by_id(connection: Connection, tenant_id: str, webhook_id: str) -> Webhook | None:
    """Return the webhook of a message as `find_webhook_by_id` does.

    It does not change until the transaction ends.
    """
    return await _one(connection, "lock_webhook_by_id", tenant_id=tenant_id, webhook_id=webhook_id)


async def find_and_lock_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook | None:
    """Return the webhook, if there is one. It does not change until the transaction ends."""
    return await _one(connection, "lock_webhook", tenant_id=tenant_id, name=name)


async def lock_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook:
    """Return the webhook, which does not change until the transaction ends. Raise NOT_FOUND."""
    return _require(await find_and_lock_webhook(connection, tenant_id, name), name)


async def list_webhooks(connection: Connection, tenant_id: str) -> list[Webhook]:
    """Return the tenant's webhooks, ordered by their names."""
    async with connection.cursor(row_factory=kwargs_row(_webhook)) as cursor:
        await cursor.execute(_SQL["list_webhooks"], {"tenant_id": tenant_id})
        return await cursor.fetchall()


async def write_webhook(connection: Connection, tenant_id: str, webhook: Webhook) -> Webhook:
    """Add the webhook if it has no id so far, or change it, and return it as it is stored.

    The caller holds the lock of the tenant, and that of a webhook that it changes.
    """
    changed = await _one(
        connection,
        "update_webhook" if webhook.webhook_id else "insert_webhook",
        tenant_id=tenant_id,
        name=webhook.name,
        webhook_id=webhook.webhook_id or new_id(IdKind.WEBHOOK),
        url=webhook.url,
        event_types=[one.value for one in webhook.event_types],
        timeout=webhook.timeout,
    )
    return _require_changed(changed)


async def write_rotation(connection: Connection, tenant_id: str, webhook: Webhook) -> Webhook:
    """Store the secrets of the locked webhook, and return it as it is stored."""
    changed = await _one(
        connection,
        "rotate_secret",
        tenant_id=tenant_id,
        name=webhook.name,
        secret_number=webhook.secret_number,
        previous_secret_until=webhook.previous_secret_until,
        rotation_id=webhook.rotation_id,
    )
    return _require_changed(changed)


async def pause_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook:
    """Pause the webhook for a person, unless it is paused, and return it. Raise NOT_FOUND."""
    await connection.execute(_SQL["pause_webhook"], {"tenant_id": tenant_id, "name": name})
    return await get_webhook(connection, tenant_id, name)


async def resume_webhook(connection: Connection, tenant_id: str, name: str) -> Webhook:
    """Resume the webhook, as one that does not fail, and return it. Raise NOT_FOUND."""
    await connection.execute(_SQL["resume_webhook"], {"tenant_id": tenant_id, "name": name})
    return await get_webhook(connection, tenant_id, name)


async def delete_webhook(connection: Connection, tenant_id: str, name: str) -> None:
    """Delete the locked webhook."""
    await connection.execute(_SQL["delete_webhook"], {"tenant_id": tenant_id, "name": name})


async def record_success(
    connection: Connection, tenant_id: str, webhook_id: str, start_time: datetime
) -> None:
    """Record that the webhook received a message, whose attempt began at this time."""
    values = {"tenant_id": tenant_id, "webhook_id": webhook_id, "start_time": start_time}
    await connection.execute(_SQL["record_success"], values)


async def record_failure(
    connection: Connection,
    tenant_id: str,
    webhook: Webhook,
    attempt: WebhookAttempt,
    retry_time: datetime,
    pause_reason: str,
) -> None:
    """Record a failed attempt, after which the webhook is left alone until `retry_time`.

    Pause it if there is a reason. A webhook that was changed, resumed or rotated since it was read
    stays as it is.
    """
    values = {
        "tenant_id": tenant_id,
        "webhook_id": webhook.webhook_id,
        "generation": webhook.generation,
        "start_time": attempt.start_time,
        "retry_time": retry_time,
        "pause_reason": pause_reason,
    }
    await connection.execute(_SQL["record_failure"], values)


async def _one(connection: Connection, statement: str, **values: object) -> Webhook | None:
    async with connection.cursor(row_factory=kwargs_row(_webhook)) as cursor:
        await cursor.execute(_SQL[statement], values)
        return await cursor.fetchone()


def _require(webhook: Webhook | None, name: str) -> Webhook:
    if webhook is None:
        raise not_found("webhook", name)
    return webhook


def _require_changed(webhook: Webhook | None) -> Webhook:
    if webhook is None:
        raise RuntimeError("a webhook that is locked was deleted")
    return webhook


def _webhook(*, event_types: Iterable[str], **columns: Any) -> Webhook:
    return Webhook(event_types=tuple(map(WebhookType, event_types)), **columns)
