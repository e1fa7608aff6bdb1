"""Delivers the events of the outbox to observers."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import structlog
from psycopg_pool import PoolTimeout
from spawnmesh.hook.v1.hook_handler_service_pb2 import HandleObservedEventRequest, HandleObservedEventResponse
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import ALL_TENANTS, Database, TenantPurged
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.telemetry import continue_trace

from spawnmesh_hook.clients.handler_request import HandlerRequest
from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.plugins import ContentAccess, HookKind, Plugin
from spawnmesh_hook.domain.relay_schedule import backoff_after, free_capacity
from spawnmesh_hook.operations import redaction, request_builders
from spawnmesh_hook.operations.offload import offload
from spawnmesh_hook.operations.plugin_directory import PluginDirectory
from spawnmesh_hook.operations.plugin_invoker import PluginInvoker
from spawnmesh_hook.operations.time_budget import budget_of
from spawnmesh_hook.store import outbox
from spawnmesh_hook.store.deliveries import Delivery, insert_delivery
from spawnmesh_hook.store.outbox import OUTBOX_CHANNEL, OutboxEntry

# Only entries of a dead worker, or of one that lost the database, are claimed again. An observer
# may have a longer timeout than `_SHORT_TIMEOUT`: the lease is then extended before it is called.
_LEASE = timedelta(seconds=60)
_SHORT_TIMEOUT = timedelta(seconds=20)

_DATABASE_ERRORS = (psycopg.Error, PoolTimeout, TenantPurged)


@dataclass(frozen=True, slots=True)
class OutboxRelay:
    """Delivers each event at least once, up to `concurrency` deliveries at the same time.

    A notification wakes the relay. It also polls every `poll_seconds`, since a notification can be
    lost, and every `busy_poll_seconds` for other tenants while one tenant has reached its share.
    """

    database: Database
    listener: Listener
    directory: PluginDirectory
    invoker: PluginInvoker
    concurrency: int
    poll_seconds: float = 5.0
    busy_poll_seconds: float = 0.2

    async def relay_until_cancelled(self) -> None:
        """Deliver due entries. While the database is unavailable, keep trying."""
        with self.listener.subscription(OUTBOX_CHANNEL) as published:
            async with asyncio.TaskGroup() as group:
                running: dict[asyncio.Task[None], str] = {}
                while True:
                    wait, busy_wait = self.poll_seconds, self.busy_poll_seconds
                    full_before: list[str] = []
                    try:
                        for entry in await self._claim(*self._capacity(running)):
                            task = group.create_task(self._deliver(entry))
                            running[task] = entry.tenant_id
                            task.add_done_callback(running.pop)
                        _, full_before = self._capacity(running)
                        wait = await self._seconds_to_next(full_before)
                    except _DATABASE_ERRORS as error:
                        raise_if_cancelled()
                        structlog.get_logger().warning("outbox_read_failed", error=type(error).__name__)
                        busy_wait = self.poll_seconds
                    free, full = self._capacity(running)
                    if full or free <= 0:
                        timeout = busy_wait if free > 0 else None
                        await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    elif not full_before:
                        # Else a tenant is below its share again, and may have more due entries.
                        await published.wait(wait)

    def _capacity(self, running: Mapping[asyncio.Task[None], str]) -> tuple[int, list[str]]:
        return free_capacity(self.concurrency, Counter(running.values()))

    async def relay_due(self) -> int:
        """Deliver the entries that are due now. Return the number of attempts."""
        due = await self._claim(self.concurrency)
        await asyncio.gather(*map(self._deliver, due))
        return len(due)

    async def _claim(self, limit: int, full_tenants: Sequence[str] = ()) -> list[OutboxEntry]:
        if limit <= 0:
            return []
        async with self.database.transaction(ALL_TENANTS) as connection:
            return await outbox.claim_due_entries(connection, _LEASE, limit, full_tenants)

    async def _seconds_to_next(self, full_tenants: Sequence[str]) -> float:
        async with self.database.transaction(ALL_TENANTS) as connection:
            seconds = await outbox.seconds_to_next_entry(connection, full_tenants)
        return self.poll_seconds if seconds is None else min(max(seconds, 0.0), self.poll_seconds)

    async def _deliver(self, entry: OutboxEntry) -> None:
        """Make one attempt.

        If its result cannot be stored, the entry is due when its lease expires.
        """
        try:
            plugin = await self._observer_of(entry)
            if plugin is not None and plugin.paused:
                await self._hold(entry)
            elif plugin is None or await self._invoke(entry, plugin):
                async with self.database.transaction(entry.tenant_id) as connection:
                    await outbox.complete_entry(connection, entry)
        except _DATABASE_ERRORS as error:
            structlog.get_logger().warning(
                "delivery_not_recorded", error=type(error).__name__, plugin=entry.plugin
            )

    async def _observer_of(self, entry: OutboxEntry) -> Plugin | None:
        """Return the observer, or None if it receives the event neither now nor when resumed."""
        for _ in range(2):
            observers = await self.directory.observers(entry.tenant_id, entry.hook)
            found = next((plugin for plugin in observers if plugin.name == entry.plugin), None)
            if found is not None:
                return found
            # The plugin may have been registered a moment ago. An entry that is dropped is lost.
            self.directory.invalidate()
        return None

    async def _hold(self, entry: OutboxEntry) -> None:
        """Keep the entry until its observer is resumed, or try again if it is by now."""
        async with self.database.transaction(entry.tenant_id) as connection:
            if not await outbox.hold_entry(connection, entry):
                await outbox.delay_entry(connection, entry, timedelta(0))
        self.directory.invalidate()

    async def _invoke(self, entry: OutboxEntry, plugin: Plugin) -> bool:
        """Return whether the observer received the event.

        Else schedule a retry or dead-letter it.
        """
        event = ObservedEvent.FromString(entry.event)
        budget = budget_of(plugin.timeout.total_seconds())
        if plugin.timeout > _SHORT_TIMEOUT:
            async with self.database.transaction(entry.tenant_id) as connection:
                await outbox.delay_entry(connection, entry, plugin.timeout + _LEASE)
        [access] = await self.directory.content_access(entry.tenant_id, entry.hook, [plugin])
        with continue_trace(entry.traceparent):
            request = await offload(len(entry.event), _build_request, access, entry.hook, event)
            answer = await self.invoker.invoke(
                entry.tenant_id, plugin, request, budget, attempt=entry.attempt
            )
        if not isinstance(answer, CallFailure):
            return True
        backoff = backoff_after(entry.attempt)
        if backoff is not None:
            async with self.database.transaction(entry.tenant_id) as connection:
                await outbox.delay_entry(connection, entry, backoff)
            return False
        async with self.database.adding(entry.tenant_id) as connection:
            await outbox.dead_letter_entry(connection, entry)
            await insert_delivery(connection, entry.tenant_id, _dead_letter(entry, event))
        structlog.get_logger().warning("event_dead_lettered", plugin=entry.plugin, hook=entry.hook)
        return False


def _build_request(
    access: ContentAccess, hook: HookKind, event: ObservedEvent
) -> HandlerRequest[HandleObservedEventRequest, HandleObservedEventResponse]:
    """Build the request, without content if the content cannot be masked.

    Such an event was published while the tenant did not mask secrets.
    """
    try:
        return request_builders.observed(access, hook, event)
    except MeshError:
        return request_builders.observed(access, hook, redaction.without_content(event))


def _dead_letter(entry: OutboxEntry, event: ObservedEvent) -> Delivery:
    return Delivery(
        delivery_id=new_id(IdKind.DELIVERY),
        plugin=entry.plugin,
        hook=entry.hook,
        session_id=event.session_id,
        run_id=event.run_id,
        start_time=utc_now(),
        latency=timedelta(0),
        decision="dead",
        error=f"it did not receive the event in {entry.attempt} attempts, and is not notified again",
        attempt=entry.attempt,
    )
