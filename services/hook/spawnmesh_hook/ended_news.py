"""A child session has ended: tells the tenant's plugins for SUBAGENT_ENDED."""

import asyncio

from spawnmesh.hook.v1.event_pb2 import SubagentEndedEvent
from spawnmesh_postgres.database import Database

from spawnmesh_hook import store
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind
from spawnmesh_hook.errors import PluginFailed
from spawnmesh_hook.plugin_calls import PluginCalls


class EndedNews:
    """Tells every observer side by side, at least once each."""

    def __init__(self, database: Database, calls: PluginCalls) -> None:
        self._database = database
        self._calls = calls

    async def tell(self, tenant_id: str, event: SubagentEndedEvent, budget: Budget) -> int:
        """Tells those that have not heard of this event key yet; returns how many have heard, now or before.

        Raises PluginFailed for one that is CLOSED, after all have been tried; a repeat tries only those that failed.
        """
        async with self._database.transaction(tenant_id) as connection:
            plugins = await store.plugins_for_hook(connection, tenant_id, HookKind.SUBAGENT_ENDED)
            heard = await store.list_heard(connection, tenant_id, event.event_key)
        waiting = [plugin for plugin in plugins if plugin.name not in heard]
        async with asyncio.TaskGroup() as together:
            calls = [
                together.create_task(self._calls.subagent_ended(tenant_id, plugin, event, budget)) for plugin in waiting
            ]
        failures = [(plugin, call.result()) for plugin, call in zip(waiting, calls, strict=True)]
        for plugin, failure in failures:
            if failure is not None and plugin.failure_policy is FailurePolicy.CLOSED:
                raise PluginFailed(plugin.name, HookKind.SUBAGENT_ENDED, failure.error)
        return len(heard) + sum(failure is None for _, failure in failures)
