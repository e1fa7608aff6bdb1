"""What a run is about to do, as the tenant's plugins want it: which model, which prompt, which tool call."""

from contextlib import aclosing
from dataclasses import dataclass

from spawnmesh.hook.v1 import event_pb2

from spawnmesh_hook import questions
from spawnmesh_hook.apart import apart
from spawnmesh_hook.asking import answers_in_order
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.modifiers import (
    MergedPrompt,
    MergedToolCall,
    ModelChoice,
    merge_models,
    merge_prompts,
    merge_tool_call,
)
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.parse import parse_prompt_change, parse_tool_call_answer
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.rewrites import rewritten_arguments


@dataclass(frozen=True, slots=True)
class RunModifiers:
    """Asks one after the other; nothing is kept but the log. Each raises PluginFailed for a plugin that fails and is CLOSED."""

    directory: PluginDirectory
    calls: PluginCalls

    async def model(self, tenant_id: str, event: event_pb2.BeforeModelResolveEvent, budget: Budget) -> ModelChoice:
        """The first that names a model, after which nobody is asked."""
        choices: list[ModelChoice] = []
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.BEFORE_MODEL_RESOLVE,
            budget,
            event,
            questions.before_model_resolve,
        )
        async with aclosing(asked) as answers:
            async for viewer, answer in answers:
                choices.append(ModelChoice(viewer.plugin.name, answer.decision.model))
                if answer.decision.model:
                    break
        return merge_models(choices)

    async def prompt(self, tenant_id: str, event: event_pb2.BeforePromptBuildEvent, budget: Budget) -> MergedPrompt:
        """What all of them make of the prompt."""
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.BEFORE_PROMPT_BUILD,
            budget,
            event,
            questions.before_prompt_build,
        )
        async with aclosing(asked) as answers:
            return merge_prompts(
                [parse_prompt_change(viewer.plugin.name, answer.decision) async for viewer, answer in answers]
            )

    async def tool_call(self, tenant_id: str, event: event_pb2.BeforeToolCallEvent, budget: Budget) -> MergedToolCall:
        """The first block, after which nobody is asked; else what the last of them made of it; each sees what those above made."""
        told = event_pb2.BeforeToolCallEvent()
        told.CopyFrom(event)
        said = []
        asked = answers_in_order(
            self.directory,
            self.calls,
            tenant_id,
            HookKind.BEFORE_TOOL_CALL,
            budget,
            told,
            questions.before_tool_call,
        )
        async with aclosing(asked) as answers:
            async for viewer, answer in answers:
                size_bytes = told.ByteSize() + answer.ByteSize()
                rewritten = await apart(size_bytes, rewritten_arguments, viewer, told, answer.decision)
                said.append(parse_tool_call_answer(viewer.plugin.name, answer.decision, rewritten))
                if said[-1].block_reason:
                    break
                told.arguments_json = said[-1].arguments_json or told.arguments_json
        return merge_tool_call(said)
