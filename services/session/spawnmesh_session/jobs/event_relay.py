"""The relay of pending events, which publishes ended runs to observers.

Plugins name the delivery target and may be slow. So this work has its own concurrency limit and
delays no other work.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.observed_pb2 import AgentEndEvent, ObservedEvent, SubagentEndedEvent
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import MeshError, error_label, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.telemetry import continue_trace, traced

from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.store import pending_events
from spawnmesh_session.store.pending_events import PendingEvent, RunEnded

# Longer than the calls of one delivery may take, so that another relay takes only events of a dead
# worker.
_HELD_FOR = timedelta(seconds=60)
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class EventRelay:
    """Delivers `limit` events at a time, half as many of one tenant, each at least once."""

    database: Database
    listener: Listener
    hooks: Hooks
    limit: int

    async def relay_forever(self) -> None:
        """Deliver until cancelled. Another worker delivers the events that were in progress."""
        busy: dict[asyncio.Task[None], str] = {}
        with self.listener.subscription(pending_events.CHANNEL) as pending:

            def remove(task: asyncio.Task[None]) -> None:
                del busy[task]
                pending.wake()

            async with asyncio.TaskGroup() as deliveries:
                while True:
                    for event in await self._take(Counter(busy.values())):
                        task = deliveries.create_task(self._deliver(event), name="deliver event")
                        busy[task] = event.tenant_id
                        task.add_done_callback(remove)
                    await pending.wait(_POLL_SECONDS)

    async def relay_due(self) -> int:
        """Deliver the events that are due now, or a page of them; return the number of tries."""
        due = await self._take({})
        await asyncio.gather(*map(self._deliver, due))
        return len(due)

    async def _take(self, busy: Mapping[str, int]) -> list[PendingEvent]:
        free = self.limit - sum(busy.values())
        if free <= 0:
            return []
        share = max(1, self.limit // 2)
        try:
            return await pending_events.take_pending_events(self.database, free, share, busy, _HELD_FOR)
        except Exception as error:  # noqa: BLE001 - the next poll tries again.
            raise_if_cancelled()
            structlog.get_logger().warning("pending_events_unread", error=error_label(error))
            return []

    async def _deliver(self, pending: PendingEvent) -> None:
        """Try once. Never raises: what could not be delivered, or recorded, is tried again."""
        event = pending.event
        log = structlog.get_logger().bind(tenant=pending.tenant_id, session=event.session_id)
        try:
            try:
                with continue_trace(event.traceparent), impersonate(pending.tenant_id):
                    async with traced("relay run end"):
                        await self.hooks.publish(_observed(event, await self._target(pending)))
            except MeshError as error:
                log.warning("event_not_delivered", error=error_label(error))
                if await pending_events.delay_pending_event(
                    self.database, pending, plugins_failed=_is_of_plugins(error)
                ):
                    return
                log.warning("event_dropped")
            except asyncio.CancelledError:
                await pending_events.return_pending_event(self.database, pending)
                raise
            await pending_events.delete_pending_event(self.database, pending)
        except Exception as error:  # noqa: BLE001 - it is tried again after _HELD_FOR.
            raise_if_cancelled()
            log.warning("event_delivery_unrecorded", error=error_label(error))

    async def _target(self, pending: PendingEvent) -> str:
        """Return the delivery target; empty if plugins fail at the last try."""
        event = pending.event
        request = DeliveryTargetEvent(
            session_id=event.session_id,
            run_id=event.run_id,
            parent_session_id=event.parent_session_id,
            outcome=event.outcome,
        )
        try:
            return await self.hooks.delivery_target(request)
        except MeshError as error:
            if pending.tries_left > 1 or not _is_of_plugins(error):
                raise
            log = structlog.get_logger().bind(tenant=pending.tenant_id, session=event.session_id)
            log.warning("event_delivered_without_target", error=error_label(error))
            return ""


def _is_of_plugins(error: MeshError) -> bool:
    """Return whether the tenant's plugins failed or were slow, and not the hook service."""
    return refused_with(error, Reason.PLUGIN_FAILED, Reason.DEADLINE_EXCEEDED)


def _observed(event: RunEnded, target: str) -> list[ObservedEvent]:
    ended = SubagentEndedEvent(
        parent_session_id=event.parent_session_id, outcome=event.outcome, delivery_target=target
    )
    observed = [
        ObservedEvent(
            event_key=f"subagent_ended:v1:{event.session_id}:{event.run_id}",
            session_id=event.session_id,
            run_id=event.run_id,
            subagent_ended=ended,
        )
    ]
    if event.run_id:
        observed.append(
            ObservedEvent(
                event_key=f"agent_end:v1:{event.session_id}:{event.run_id}",
                session_id=event.session_id,
                run_id=event.run_id,
                agent_end=AgentEndEvent(outcome=event.outcome),
            )
        )
    return observed
