"""The decisions that handlers may return, one function for each."""

import json
from collections.abc import Mapping, Sequence

from spawnmesh.hook.v1 import decision_pb2 as pb
from spawnmesh.hook.v1.compaction_pb2 import Compact, CompactionDecision, KeepWhole
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetDecision


def allow() -> pb.SpawnDecision:
    """Answer `before_spawn`: allow it. A handler that returns nothing allows it, too."""
    return pb.SpawnDecision(allow=pb.Allow())


def deny(reason: str) -> pb.SpawnDecision:
    """Answer `before_spawn`: refuse it. The caller reads the reason."""
    return pb.SpawnDecision(deny=pb.Deny(reason=reason))


def go_on() -> pb.FinalizeDecision:
    """Answer `before_agent_finalize`: no objection.

    A handler that returns nothing has none either.
    """
    decision = pb.FinalizeDecision()
    getattr(decision, "continue").SetInParent()  # `continue` is a keyword of Python.
    return decision


def revise(reason: str, *, objection_key: str = "", max_attempts: int = 1) -> pb.FinalizeDecision:
    """Answer `before_agent_finalize`: send the draft back with the reason.

    With a key, the objection is granted at most `max_attempts` times in a run and then ignored.
    """
    attempts = max_attempts if objection_key else 0
    return pb.FinalizeDecision(
        revise=pb.Revise(reason=reason, objection_key=objection_key, max_attempts=attempts)
    )


def finalize(reason: str = "") -> pb.FinalizeDecision:
    """Answer `before_agent_finalize`: the draft is final; plugins of lower priority are not
    called.
    """
    return pb.FinalizeDecision(finalize=pb.Finalize(reason=reason))


def use_model(model: str) -> pb.ModelDecision:
    """Answer `before_model_resolve`: call this model first."""
    return pb.ModelDecision(model=model)


def change_prompt(
    *, system_prompt: str = "", context: str = "", tools: Sequence[str] | None = None
) -> pb.PromptDecision:
    """Answer `before_prompt_build`: another system prompt, a text before the conversation, or
    only these tools.
    """
    listed = None if tools is None else pb.ToolList(names=tools)
    return pb.PromptDecision(system_prompt=system_prompt, context=context, tools=listed)


def deliver_to(target: str) -> DeliveryTargetDecision:
    """Answer `delivery_target`: deliver it there, by the `subagent_ended` observer for such
    targets.
    """
    return DeliveryTargetDecision(target=target)


def compact(instructions: str = "") -> CompactionDecision:
    """Answer `before_compaction`: allow it; the summary keeps what the instructions say.

    A handler that returns nothing allows it without instructions.
    """
    return CompactionDecision(compact=Compact(instructions=instructions))


def keep_whole(reason: str) -> CompactionDecision:
    """Answer `before_compaction`: refuse it; the requester reads the reason.

    Plugins of lower priority are not called.
    """
    return CompactionDecision(keep_whole=KeepWhole(reason=reason))


def proceed() -> pb.ToolCallDecision:
    """Answer `before_tool_call`: make the call as it is.

    A handler that returns nothing does the same.
    """
    return pb.ToolCallDecision(proceed=pb.Proceed())


def rewrite(arguments: Mapping[str, object]) -> pb.ToolCallDecision:
    """Answer `before_tool_call`: make the call with these arguments instead."""
    return pb.ToolCallDecision(rewrite=pb.Rewrite(arguments_json=json.dumps(arguments)))


def block(reason: str) -> pb.ToolCallDecision:
    """Answer `before_tool_call`: block the call; the model reads the reason."""
    return pb.ToolCallDecision(block=pb.Block(reason=reason))


def require_approval(reason: str) -> pb.ToolCallDecision:
    """Answer `before_tool_call`: make the call only if a person approves it; the person reads the
    reason.

    Plugins of lower priority are called. One that blocks the call spares the person.
    """
    return pb.ToolCallDecision(require_approval=pb.RequireApproval(reason=reason))
