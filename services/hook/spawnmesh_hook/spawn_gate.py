"""May this session be spawned? Asks the tenant's plugins for BEFORE_SPAWN."""

from spawnmesh.hook.v1.event_pb2 import BeforeSpawnEvent
from spawnmesh_postgres.database import Database

from spawnmesh_hook import store
from spawnmesh_hook.answers import Failure
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.domain.decisions import Denial
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind
from spawnmesh_hook.errors import PluginFailed
from spawnmesh_hook.plugin_calls import PluginCalls


class SpawnGate:
    """Asks one after the other; nothing is kept but the log."""

    def __init__(self, database: Database, calls: PluginCalls) -> None:
        self._database = database
        self._calls = calls

    async def judge(self, tenant_id: str, event: BeforeSpawnEvent, budget: Budget) -> Denial | None:
        """The first denial in order of priority, after which nobody is asked; None when there is none. Raises PluginFailed."""
        async with self._database.transaction(tenant_id) as connection:
            plugins = await store.plugins_for_hook(connection, tenant_id, HookKind.BEFORE_SPAWN)
        for plugin in plugins:
            answer = await self._calls.before_spawn(tenant_id, plugin, event, budget)
            if isinstance(answer, Denial):
                return answer
            if isinstance(answer, Failure) and plugin.failure_policy is FailurePolicy.CLOSED:
                raise PluginFailed(plugin.name, HookKind.BEFORE_SPAWN, answer.error)
        return None
