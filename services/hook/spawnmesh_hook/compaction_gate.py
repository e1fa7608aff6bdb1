"""May the oldest part of a transcript be summarized, and what has to be kept? Asks the tenant's plugins for BEFORE_COMPACTION."""

from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent

from spawnmesh_hook import questions
from spawnmesh_hook.asking import answers_in_order
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.compaction import CompactionAnswer, MergedCompaction, merge_compaction
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.parse import parse_compaction_answer
from spawnmesh_hook.plugin_calls import PluginCalls


@dataclass(frozen=True, slots=True)
class CompactionGate:
    """Asks one after the other; nothing is kept but the log."""

    directory: PluginDirectory
    calls: PluginCalls

    async def judge(self, tenant_id: str, event: BeforeCompactionEvent, budget: Budget) -> MergedCompaction:
        """The first refusal, after which nobody is asked; else the instructions of all. Raises PluginFailed."""
        said: list[CompactionAnswer] = []
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.BEFORE_COMPACTION,
            budget,
            event,
            questions.before_compaction,
        )
        async with aclosing(asked) as answers:
            async for viewer, answer in answers:
                said.append(parse_compaction_answer(viewer.plugin.name, answer.decision))
                if said[-1].refusal:
                    break
        return merge_compaction(said)
