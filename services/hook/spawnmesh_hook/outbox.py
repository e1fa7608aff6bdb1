"""Publishing to observers: what has happened is kept before anybody is told of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook import outbox_store, visible
from spawnmesh_hook.apart import apart
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.plugins import HookKind, Viewer
from spawnmesh_hook.outbox_store import Published

_MAX_KEY_BYTES = 256


@dataclass(frozen=True, slots=True)
class Outbox:
    """Keeps events for those who listen; without listeners it costs no transaction."""

    database: Database
    directory: PluginDirectory

    async def publish(self, tenant_id: str, events: Sequence[ObservedEvent], *, run_id: str = "") -> int:
        """How many tellings were queued, all in one transaction; a known key queues none. `run_id` is that of a run that publishes."""
        wanted: list[tuple[Published, list[str]]] = []
        for event in events:
            plugins = await self.directory.active(tenant_id, kind_of(event))
            if plugins:
                viewers = await self.directory.viewers(tenant_id, kind_of(event), plugins)
                published = await apart(event.ByteSize(), _published, event, viewers, run_id)
                wanted.append((published, [plugin.name for plugin in plugins]))
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


def _published(event: ObservedEvent, viewers: Sequence[Viewer], run_id: str) -> Published:
    """Content is kept only where one of those who listen may see it, and as it may be seen.

    A run's keys are its own: none is that of an event which somebody else will tell.
    """
    seeing = next((viewer for viewer in viewers if viewer.plugin.sees_content), None)
    kept = visible.without_content(event) if seeing is None else visible.observed(seeing, event)
    if run_id:
        kept.event_key = _key_of_run(run_id, event.event_key)
    return Published(
        event_key=kept.event_key,
        hook=kind_of(event),
        session_id=event.session_id,
        run_id=event.run_id,
        event=kept.SerializeToString(),
        traceparent=current_traceparent(),
    )


def _key_of_run(run_id: str, event_key: str) -> str:
    """The same for the same two; with a hash of the key where both are longer than the contract lets a key be."""
    key = f"run:{run_id}:{event_key}"
    if len(key.encode()) <= _MAX_KEY_BYTES:
        return key
    return f"run:{run_id}:{hashlib.sha256(event_key.encode()).hexdigest()}"
