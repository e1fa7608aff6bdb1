"""Publishing to observers: what has happened is kept before anybody is told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook import outbox_store, visible
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.plugins import HookKind, Viewer
from spawnmesh_hook.outbox_store import Published


@dataclass(frozen=True, slots=True)
class Outbox:
    """Keeps events for those who listen; without listeners it costs no transaction."""

    database: Database
    directory: PluginDirectory

    async def publish(self, tenant_id: str, events: Sequence[ObservedEvent]) -> int:
        """How many tellings were queued, all in one transaction; a known key queues none."""
        wanted: list[tuple[Published, list[str]]] = []
        for event in events:
            plugins = await self.directory.active(tenant_id, kind_of(event))
            if plugins:
                viewers = await self.directory.viewers(tenant_id, kind_of(event), plugins)
                wanted.append((_published(event, viewers), [plugin.name for plugin in plugins]))
        if not wanted:
            return 0
        queued = 0
        async with self.database.transaction(tenant_id) as connection:
            for published, names in wanted:
                if await outbox_store.add_event(connection, tenant_id, published, names):
                    queued += len(names)
            await outbox_store.announce_outbox(connection)
        return queued


def kind_of(event: ObservedEvent) -> HookKind:
    """The hook of an event that passed the contract's rules."""
    return HookKind((event.WhichOneof("event") or "").upper())


def _published(event: ObservedEvent, viewers: Sequence[Viewer]) -> Published:
    """Content is kept only where one of those who listen may see it, and as it may be seen."""
    seeing = next((viewer for viewer in viewers if viewer.plugin.sees_content), None)
    kept = visible.without_content(event) if seeing is None else visible.observed(seeing, event)
    return Published(
        event_key=event.event_key,
        hook=kind_of(event),
        session_id=event.session_id,
        run_id=event.run_id,
        event=kept.SerializeToString(),
        traceparent=current_traceparent(),
    )
