"""PublishEvents: store events in the outbox for the tenant's observers and webhooks."""

import hashlib
from collections.abc import Sequence

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook.domain.plugins import (
    RUN_OBSERVERS,
    SESSION_OBSERVERS,
    TRANSCRIPT_OBSERVERS,
    ContentAccess,
    HookKind,
)
from spawnmesh_hook.domain.webhooks import TYPE_OF_HOOK, WebhookMessage
from spawnmesh_hook.operations import redaction
from spawnmesh_hook.operations.event_messages import message_of
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import check_own_run
from spawnmesh_hook.store import outbox, webhook_deliveries
from spawnmesh_hook.store.outbox import PublishedEvent

_MAX_KEY_BYTES = 256


async def publish_events(
    request: pb.PublishEventsRequest, caller: Caller, deps: Dependencies
) -> pb.PublishEventsResponse:
    """Store the events that have receivers, all in one transaction, and count the new entries.

    An event whose key is known adds none. Without observers and webhooks there is no transaction.
    Raises NOT_FOUND for another run, and INVALID_REQUEST for an event that the caller may not
    publish.
    """
    _check_events(request, caller)
    to_enqueue: list[tuple[PublishedEvent, list[str]]] = []
    to_send: list[tuple[str, WebhookMessage]] = []
    for event in request.events:
        hook = _hook_of(event)
        if subscribers := await deps.plugin_cache.subscribers(caller.tenant_id, hook):
            message = message_of(event, TYPE_OF_HOOK[hook])
            to_send += [(webhook.webhook_id, message) for webhook in subscribers]
        observers = await deps.plugin_cache.observers(caller.tenant_id, hook)
        if observers:
            accesses = await deps.plugin_cache.content_access(caller.tenant_id, hook, observers)
            published = await deps.workers.run(
                caller.tenant_id, event.ByteSize(), _redact_and_render, event, accesses, caller.run_id
            )
            to_enqueue.append((published, [plugin.name for plugin in observers]))
    if not to_enqueue and not to_send:
        return pb.PublishEventsResponse(queued_count=0)
    queued_count = 0
    async with deps.database.adding(caller.tenant_id) as connection:
        for published, names in to_enqueue:
            if await outbox.enqueue_event(connection, caller.tenant_id, published, names):
                queued_count += len(names)
        if to_send:
            queued_count += await webhook_deliveries.enqueue_messages(
                connection, caller.tenant_id, to_send, current_traceparent()
            )
    return pb.PublishEventsResponse(queued_count=queued_count)


def _check_events(request: pb.PublishEventsRequest, caller: Caller) -> None:
    allowed = _publishable_by(caller)
    for index, event in enumerate(request.events):
        if caller.kind is CallerKind.RUN:
            check_own_run(caller, event.session_id, event.run_id)
        if _hook_of(event) not in allowed:
            publisher = f"the {caller.service} service" if caller.service else "a run"
            raise invalid(f"events[{index}].event", f"is not an event that {publisher} may publish")


def _publishable_by(caller: Caller) -> frozenset[HookKind]:
    if caller.kind is CallerKind.RUN:
        return RUN_OBSERVERS
    return TRANSCRIPT_OBSERVERS if caller.service == "transcript" else SESSION_OBSERVERS


def _hook_of(event: ObservedEvent) -> HookKind:
    return HookKind((event.WhichOneof("event") or "").upper())


def _redact_and_render(
    event: ObservedEvent, accesses: Sequence[ContentAccess], run_id: str
) -> PublishedEvent:
    """Return the event to store, with content only if an observer may see it.

    The keys of a run get a prefix, so that they never equal the key of another publisher's event.
    """
    access = next((access for access in accesses if access.plugin.sees_content), None)
    stored = redaction.without_content(event) if access is None else redaction.redact_observed(access, event)
    if run_id:
        stored.event_key = _key_of_run(run_id, event.event_key)
    return PublishedEvent(
        event_key=stored.event_key,
        hook=_hook_of(event),
        session_id=event.session_id,
        run_id=event.run_id,
        event=stored.SerializeToString(),
        traceparent=current_traceparent(),
    )


def _key_of_run(run_id: str, event_key: str) -> str:
    """Return a key that is unique to the run. A key that would be too long is hashed."""
    key = f"run:{run_id}:{event_key}"
    if len(key.encode()) <= _MAX_KEY_BYTES:
        return key
    return f"run:{run_id}:{hashlib.sha256(event_key.encode()).hexdigest()}"
