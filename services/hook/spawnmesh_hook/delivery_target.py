"""Where is the end of a session to be told? Asks the tenant's plugins for DELIVERY_TARGET."""

from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent

from spawnmesh_hook import questions
from spawnmesh_hook.asking import answers_in_order
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.modifiers import TargetChoice, merge_targets
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.plugin_calls import PluginCalls


@dataclass(frozen=True, slots=True)
class DeliveryTargets:
    """Asks one after the other; nothing is kept but the log."""

    directory: PluginDirectory
    calls: PluginCalls

    async def choose(self, tenant_id: str, event: DeliveryTargetEvent, budget: Budget) -> TargetChoice:
        """The first that names a target, after which nobody is asked. Raises PluginFailed."""
        choices: list[TargetChoice] = []
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.DELIVERY_TARGET,
            budget,
            event,
            questions.delivery_target,
        )
        async with aclosing(asked) as answers:
            async for viewer, answer in answers:
                choices.append(TargetChoice(viewer.plugin.name, answer.decision.target))
                if answer.decision.target:
                    break
        return merge_targets(choices)
