"""UpdateWebhook: create a webhook of the tenant, or change one."""

from dataclasses import dataclass

from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh_calls.field_masks import Path, apply_changes, changed_paths
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_postgres.database import Connection
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.endpoints import Endpoint, parse_webhook_url
from spawnmesh_hook.domain.errors import UnknownTenant
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.webhooks import (
    DEFAULT_TIMEOUT,
    Webhook,
    check_webhook_count,
    check_webhook_etag,
    in_fixed_order,
)
from spawnmesh_hook.operations.endpoint_check import check_endpoint
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.webhook_messages import parse_type, render_webhook
from spawnmesh_hook.store import plugins, webhooks

_FIXED = frozenset(
    {
        "name",
        "paused",
        "pause_reason",
        "failing_since_time",
        "previous_secret_expire_time",
        "create_time",
        "etag",
    }
)


async def update_webhook(
    request: pb.UpdateWebhookRequest, caller: Caller, deps: Dependencies
) -> pb.UpdateWebhookResponse:
    """Enable the hooks of the webhook's events, store the webhook and return it with its secret.

    Raises UnknownTenant, NOT_FOUND, ETAG_DIFFERS, WEBHOOK_COUNT_EXCEEDED, EndpointNotAllowed and
    EndpointNotReached.
    """
    tenant_id = caller.tenant_id
    paths = changed_paths(request.update_mask, request.webhook, _FIXED)
    webhook = None
    while webhook is None:
        async with deps.database.transaction(tenant_id) as connection:
            change = await _read_change(connection, tenant_id, request, paths)
        if change.has_new_address:
            must_connect = not request.allow_unreachable
            endpoint = _endpoint_of(change.wanted)
            await check_endpoint(endpoint, tenant_id, deps.guard, deps.probe, must_connect=must_connect)
        webhook = await _store(change, request, paths, tenant_id, deps)
    deps.plugin_cache.invalidate()
    [secret, *_] = deps.secrets.of_webhook(tenant_id, webhook, utc_now())
    return pb.UpdateWebhookResponse(webhook=render_webhook(webhook), secret=secret)


@dataclass(frozen=True, slots=True)
class _WebhookChange:
    """A webhook as it is and as it is wanted, of the tenant with this `settings_version`."""

    current: Webhook | None
    wanted: Webhook
    settings_version: int

    @property
    def has_new_address(self) -> bool:
        """Return whether the address was not checked so far."""
        return self.current is None or self.current.url != self.wanted.url

    @property
    def checked_url(self) -> str:
        """The address that was checked for this change; empty if none was."""
        return self.wanted.url if self.has_new_address else ""

    @property
    def enabled(self) -> tuple[int, frozenset[HookKind]]:
        """Return what the session service has to know before the webhook is stored."""
        return self.settings_version, frozenset(self.wanted.hooks)


async def _store(
    read: _WebhookChange,
    request: pb.UpdateWebhookRequest,
    paths: tuple[Path, ...],
    tenant_id: str,
    deps: Dependencies,
) -> Webhook | None:
    """Enable the hooks of the webhook that was read, store the webhook and return it.

    Return None, with nothing stored, if other hooks would have to be enabled by now, or those of a
    tenant that was created anew, or if the address was not checked.
    """
    if deps.session is not None:
        await deps.session.enable_hooks(tenant_id, read.wanted.hooks)
    async with deps.database.adding(tenant_id) as connection:
        # Others may have been added or changed meanwhile. An address that another call has written
        # was checked by that call.
        change = await _read_change(connection, tenant_id, request, paths)
        is_unchecked = change.has_new_address and change.wanted.url != read.checked_url
        if change.enabled != read.enabled or is_unchecked:
            return None
        current, wanted = change.current, change.wanted
        if current is None or not current.is_same_content(wanted):
            current = await webhooks.write_webhook(connection, tenant_id, wanted)
            await plugins.notify_plugins_changed(connection)
    return current


async def _read_change(
    connection: Connection, tenant_id: str, request: pb.UpdateWebhookRequest, paths: tuple[Path, ...]
) -> _WebhookChange:
    """Return the webhook as it is and as it is wanted, after every check that needs no network.

    Until the transaction ends, no other one writes a webhook of the tenant.
    """
    given = request.webhook
    settings_version = await webhooks.lock_webhook_tenant(connection, tenant_id)
    if settings_version is None:
        raise UnknownTenant("this tenant does not exist")
    current = await webhooks.find_and_lock_webhook(connection, tenant_id, given.name)
    if current is None:
        if given.etag or not request.allow_missing:
            raise not_found("webhook", given.name)
        check_webhook_count(await webhooks.count_webhooks(connection, tenant_id))
        wanted = _parse(given, Webhook("", "", (), DEFAULT_TIMEOUT))
        return _WebhookChange(None, wanted, settings_version)
    message = render_webhook(current)
    apply_changes(paths, given, message)
    wanted = _parse(message, current)
    if not current.is_same_content(wanted):
        check_webhook_etag("webhook.etag", given.etag, current)
    return _WebhookChange(current, wanted, settings_version)


def _parse(message: webhook_pb2.Webhook, current: Webhook) -> Webhook:
    """Return the webhook with what people change from the message, and the rest from `current`.

    Raise INVALID_REQUEST for an address that is no URL of a webhook.
    """
    webhook = Webhook(
        name=message.name,
        url=message.url,
        event_types=in_fixed_order(one for one in map(parse_type, message.event_types) if one),
        timeout=message.timeout.ToTimedelta() if message.HasField("timeout") else DEFAULT_TIMEOUT,
        webhook_id=current.webhook_id,
        generation=current.generation,
    )
    _endpoint_of(webhook)
    return webhook


def _endpoint_of(webhook: Webhook) -> Endpoint:
    try:
        return parse_webhook_url(webhook.url)
    except ValueError as error:
        raise invalid("webhook.url", str(error)) from error
