"""May this session be spawned? Asks the tenant's plugins for BEFORE_SPAWN."""

from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh.hook.v1.event_pb2 import BeforeSpawnEvent

from spawnmesh_hook import questions
from spawnmesh_hook.asking import answers_in_order
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.decisions import Denial
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.parse import parse_denial
from spawnmesh_hook.plugin_calls import PluginCalls


@dataclass(frozen=True, slots=True)
class SpawnGate:
    """Asks one after the other; nothing is kept but the log."""

    directory: PluginDirectory
    calls: PluginCalls

    async def judge(self, tenant_id: str, event: BeforeSpawnEvent, budget: Budget) -> Denial | None:
        """The first denial in order of priority, after which nobody is asked; None when there is none. Raises PluginFailed."""
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.BEFORE_SPAWN,
            budget,
            event,
            questions.before_spawn,
        )
        async with aclosing(asked) as answers:
            async for viewer, answer in answers:
                denial = parse_denial(viewer.plugin.name, answer.decision)
                if denial is not None:
                    return denial
        return None
