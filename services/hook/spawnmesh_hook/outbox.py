"""Publishing to observers: what has happened is kept before anybody is told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook import outbox_store, visible
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.plugins import HookKind, Plugin
from spawnmesh_hook.outbox_store import Published


@dataclass(frozen=True, slots=True)
class Outbox:
    """Keeps events for those who listen; without listeners it costs no transaction."""

    database: Database
    directory: PluginDirectory

    async def publish(self, tenant_id: str, events: Sequence[ObservedEvent]) -> int:
        """How many tellings were queued, all in one transaction; a known key queues none."""
        listened = [(event, await self.directory.active(tenant_id, kind_of(event))) for event in events]
        wanted = [(event, plugins) for event, plugins in listened if plugins]
        if not wanted:
            return 0
        queued = 0
        async with self.database.transaction(tenant_id) as connection:
            for event, plugins in wanted:
                kept = _published(event, plugins)
                if await outbox_store.add_event(connection, tenant_id, kept, [plugin.name for plugin in plugins]):
                    queued += len(plugins)
            await outbox_store.announce_outbox(connection)
        return queued


def kind_of(event: ObservedEvent) -> HookKind:
    """The hook of an event that passed the contract's rules."""
    return HookKind((event.WhichOneof("event") or "").upper())


def _published(event: ObservedEvent, plugins: Sequence[Plugin]) -> Published:
    """Content is kept only where one of those who listen may see it."""
    kept = event if any(plugin.sees_content for plugin in plugins) else visible.without_content(event)
    return Published(
        event_key=event.event_key,
        hook=kind_of(event),
        session_id=event.session_id,
        run_id=event.run_id,
        event=kept.SerializeToString(),
        traceparent=current_traceparent(),
    )
