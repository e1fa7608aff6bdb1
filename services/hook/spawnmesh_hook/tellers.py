"""The worker's part: tells observers what is in the outbox, and deletes what is past its time."""

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
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_runtime.telemetry import continue_trace

from spawnmesh_hook import outbox_store, questions, store, visible
from spawnmesh_hook.answers import Failure
from spawnmesh_hook.apart import apart
from spawnmesh_hook.budget import budget_of
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.plugins import HookKind, Plugin, Viewer
from spawnmesh_hook.domain.telling import pause_after, room_for_more
from spawnmesh_hook.outbox_store import OUTBOX_CHANNEL, Telling
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.questions import Question

# Longer than the longest time-out of a plugin, so that only what a dead worker held is told by another.
_HELD_FOR = timedelta(seconds=660)
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_BESIDE_SECONDS = 0.2  # While a tenant waits for its own observers, others may have published.
_PRUNE_EVERY_SECONDS = 600.0
_PRUNE_LIMIT = 5_000

_AWAY = (psycopg.Error, PoolTimeout)


@dataclass(frozen=True, slots=True)
class Tellers:
    """Tells side by side, `at_once` at a time; each at least once."""

    database: Database
    listener: Listener
    directory: PluginDirectory
    calls: PluginCalls
    at_once: int
    kept_for: timedelta

    async def tell_for_ever(self) -> None:
        """Until cancelled; while the database is away it tries again."""
        with self.listener.subscription(OUTBOX_CHANNEL) as published:
            async with asyncio.TaskGroup() as group:
                busy: dict[asyncio.Task[None], str] = {}
                while True:
                    wait, beside, left_out = _LOOK_AGAIN_SECONDS, _LOOK_BESIDE_SECONDS, list[str]()
                    try:
                        for telling in await self._take(*self._room(busy)):
                            task = group.create_task(self._tell(telling))
                            busy[task] = telling.tenant_id
                            task.add_done_callback(busy.pop)
                        _, left_out = self._room(busy)
                        wait = await self._seconds_to_next(left_out)
                    except _AWAY as error:
                        heed_cancellation()
                        structlog.get_logger().warning("outbox_unread", error=type(error).__name__)
                        beside = _LOOK_AGAIN_SECONDS
                    room, full = self._room(busy)
                    if full or room <= 0:
                        await asyncio.wait(
                            busy, timeout=beside if room > 0 else None, return_when=asyncio.FIRST_COMPLETED
                        )
                    elif not left_out:  # Who was left out has room again, and may have more to be told.
                        await published.wait(wait)

    def _room(self, busy: Mapping[asyncio.Task[None], str]) -> tuple[int, list[str]]:
        """By the tenant that each task tells for."""
        return room_for_more(self.at_once, Counter(busy.values()))

    async def tell_due(self) -> int:
        """Tells what is due now and waits until it is told; how many tries that were."""
        due = await self._take(self.at_once)
        await asyncio.gather(*map(self._tell, due))
        return len(due)

    async def prune_for_ever(self) -> None:
        """Deletes what is older than it is kept, now and every ten minutes, until cancelled."""
        while True:
            try:
                while await self.prune() >= _PRUNE_LIMIT:
                    pass
            except _AWAY as error:
                heed_cancellation()
                structlog.get_logger().warning("log_unpruned", error=type(error).__name__)
            await asyncio.sleep(_PRUNE_EVERY_SECONDS)

    async def prune(self) -> int:
        """Deletes a bounded part of what is too old; how many rows."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            return await store.delete_old(connection, self.kept_for, _PRUNE_LIMIT)

    async def _take(self, limit: int, full: Sequence[str] = ()) -> list[Telling]:
        if limit <= 0:
            return []
        async with self.database.transaction(EVERY_TENANT) as connection:
            return await outbox_store.take_due(connection, _HELD_FOR, limit, full)

    async def _seconds_to_next(self, full: Sequence[str]) -> float:
        async with self.database.transaction(EVERY_TENANT) as connection:
            seconds = await outbox_store.seconds_to_next(connection, full)
        return _LOOK_AGAIN_SECONDS if seconds is None else min(max(seconds, 0.0), _LOOK_AGAIN_SECONDS)

    async def _tell(self, telling: Telling) -> None:
        """One try. What is not noted for want of a database is told again when its time is over."""
        try:
            plugin = await self._plugin(telling)
            if plugin is None or await self._hears(telling, plugin):
                async with self.database.transaction(telling.tenant_id) as connection:
                    await outbox_store.told(connection, telling)
        except _AWAY as error:
            structlog.get_logger().warning("telling_unnoted", error=type(error).__name__, plugin=telling.plugin)

    async def _plugin(self, telling: Telling) -> Plugin | None:
        """Who is to be told; None where it is no longer there, is paused, or does not listen to this any more."""
        for _ in range(2):
            active = await self.directory.active(telling.tenant_id, telling.hook)
            found = next((plugin for plugin in active if plugin.name == telling.plugin), None)
            if found is not None:
                return found
            self.directory.forget()  # It may have been registered a moment ago; what is dropped here is never told.
        return None

    async def _hears(self, telling: Telling, plugin: Plugin) -> bool:
        event = ObservedEvent.FromString(telling.event)
        budget = budget_of(plugin.timeout.total_seconds())
        [viewer] = await self.directory.viewers(telling.tenant_id, telling.hook, [plugin])
        with continue_trace(telling.traceparent):
            question = await apart(len(telling.event), _question, viewer, telling.hook, event)
            answer = await self.calls.ask(telling.tenant_id, plugin, question, budget, attempt=telling.attempt)
        if not isinstance(answer, Failure):
            return True
        pause = pause_after(telling.attempt)
        async with self.database.transaction(telling.tenant_id) as connection:
            if pause is not None:
                await outbox_store.tell_again(connection, telling, pause)
                return False
            await outbox_store.bury(connection, telling)
            await store.add_delivery(connection, telling.tenant_id, _given_up(telling, event))
        structlog.get_logger().warning("observer_given_up", plugin=telling.plugin, hook=telling.hook)
        return False


def _question(
    viewer: Viewer, hook: HookKind, event: ObservedEvent
) -> Question[HandleObservedEventRequest, HandleObservedEventResponse]:
    """Without content where that cannot be masked: it was published while nobody asked for it to be."""
    try:
        return questions.observed(viewer, hook, event)
    except MeshError:
        return questions.observed(viewer, hook, visible.without_content(event))


def _given_up(telling: Telling, event: ObservedEvent) -> store.Delivery:
    return store.Delivery(
        delivery_id=new_id(IdKind.DELIVERY),
        plugin=telling.plugin,
        hook=telling.hook,
        session_id=event.session_id,
        run_id=event.run_id,
        start_time=utc_now(),
        latency=timedelta(0),
        decision="dead",
        error=f"it did not hear in {telling.attempt} tries and is not told again",
        attempt=telling.attempt,
    )
