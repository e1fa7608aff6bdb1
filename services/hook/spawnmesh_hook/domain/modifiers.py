"""Merge the answers of several plugins about a model, prompt, tool call or delivery target."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_core.json_text import MAX_DEPTH, may_have_too_many_nodes, parse_json

CONTEXT_MAX_BYTES = 64 * 1024
"""The bound of the proto for one context, also after joining."""
APPROVAL_REASON_MAX_BYTES = 4096
"""The bound of the session service for the reason of an approval, also after joining."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model that a plugin wants to be called first; empty if the plugin does not choose."""

    plugin: str
    model: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """A plugin's change of a prompt. Empty texts and None change nothing."""

    plugin: str
    system_prompt: str = ""
    context: str = ""
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MergedPrompt:
    """The merged change of a prompt. `decided_by` is in order of priority."""

    system_prompt: str
    context: str
    tools: tuple[str, ...] | None
    decided_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolCallAnswer:
    """A plugin's answer to a tool call.

    The plugin rewrites the arguments, blocks the call or requires an approval: one of the texts is
    not empty. All are empty if the call proceeds unchanged.
    """

    plugin: str
    arguments_json: str = ""
    block_reason: str = ""
    approval_reason: str = ""


@dataclass(frozen=True, slots=True)
class MergedToolCall:
    """The merged answer to a tool call.

    `arguments_json` and `block_reason` are empty if the call is unchanged. `approval_reason` has
    the plugins that require approval with their reasons, and is empty for a blocked call.
    `decided_by` and `rewritten_by` are in order of priority.
    """

    arguments_json: str
    block_reason: str
    approval_reason: str
    decided_by: tuple[str, ...]
    rewritten_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The delivery target that a plugin chooses; empty if the plugin does not choose."""

    plugin: str
    target: str


def merge_targets(choices: Sequence[TargetChoice]) -> TargetChoice:
    """Return the first choice with a target, in order of priority, or an empty choice."""
    return next((choice for choice in choices if choice.target), TargetChoice("", ""))


def merge_models(choices: Sequence[ModelChoice]) -> ModelChoice:
    """Return the first choice with a model, in order of priority, or an empty choice."""
    return next((choice for choice in choices if choice.model), ModelChoice("", ""))


def merge_prompts(changes: Sequence[PromptChange]) -> MergedPrompt:
    """Merge the changes of a prompt.

    - The first system prompt wins.
    - All contexts are joined as paragraphs and cut at CONTEXT_MAX_BYTES.
    - A tool stays if it is on every list of tools.
    """
    system = next((change for change in changes if change.system_prompt), None)
    context = "\n\n".join(change.context for change in changes if change.context)
    lists = [change.tools for change in changes if change.tools is not None]
    tools = None
    if lists:
        common = set(lists[0]).intersection(*lists[1:])
        tools = tuple(dict.fromkeys(name for name in lists[0] if name in common))
    decided_by = tuple(
        change.plugin for change in changes if change is system or change.context or change.tools is not None
    )
    return MergedPrompt(
        system.system_prompt if system else "",
        _cut(context, CONTEXT_MAX_BYTES),
        tools,
        decided_by,
    )


def merge_tool_call(answers: Sequence[ToolCallAnswer]) -> MergedToolCall:
    """Merge the answers to a tool call.

    - The first block wins, and no approval is required then.
    - Otherwise the last rewritten arguments win, and each plugin that requires approval adds its
      reason, such as `cfo: more than 100 EUR; legal: new customer`. The reasons are cut at
      APPROVAL_REASON_MAX_BYTES.
    """
    for answer in answers:
        if answer.block_reason:
            return MergedToolCall("", answer.block_reason, "", (answer.plugin,))
    rewrites = [answer.arguments_json for answer in answers if answer.arguments_json]
    reasons = "; ".join(
        f"{answer.plugin}: {answer.approval_reason}" for answer in answers if answer.approval_reason
    )
    return MergedToolCall(
        rewrites[-1] if rewrites else "",
        "",
        _cut(reasons, APPROVAL_REASON_MAX_BYTES),
        tuple(answer.plugin for answer in answers if answer.arguments_json or answer.approval_reason),
        tuple(answer.plugin for answer in answers if answer.arguments_json),
    )


def is_object(text: str) -> bool:
    """Return whether the text is a JSON object within the bounds of `parse_json`."""
    try:
        if text.count("[") + text.count("{") > MAX_DEPTH or may_have_too_many_nodes(text):
            parse_json(text)
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _cut(text: str, max_bytes: int) -> str:
    """Return the longest start of the text that fits and ends with a complete character."""
    return text.encode()[:max_bytes].decode(errors="ignore")
