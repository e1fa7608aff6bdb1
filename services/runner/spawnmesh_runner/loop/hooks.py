"""Hooks of a run: dispatch prompts, models and tool calls to plugins; publish events."""

import json
import uuid
from collections.abc import MutableSequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2, observed_pb2, run_hook_service_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.session.v1 import run_event_pb2
from spawnmesh_client.unfinished_turn import OpenCall
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachment_redaction import redact_files, restore_files
from spawnmesh_runner.loop.run_events import chosen_model, decided_call
from spawnmesh_runner.tools.calling.call import BLOCKED, ToolOutcome, refusal
from spawnmesh_runner.tools.calling.call_arguments import call_arguments, replace_arguments

_DISPATCH_SECONDS = 660.0  # A plugin may take ten minutes.
_MAX_RESULT_CHARS = 64 * 1024
_MAX_FALLBACKS = 16
_MAX_ARGUMENTS_BYTES = 1024 * 1024  # Of the contract: no gate is shown more.


async def refresh_active_hooks(assignment: Assignment) -> None:
    """List the hooks that have a subscriber.

    The others are not dispatched until the next refresh.
    """
    peers = assignment.peers
    request = run_hook_service_pb2.ListActiveHooksRequest()
    hooks = set[event_pb2.HookKind.ValueType]()
    while True:
        page = await call_with_retry(peers.hook, peers.run_hooks.ListActiveHooks, request)
        hooks.update(page.hooks)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assignment.active_hooks.clear()
    assignment.active_hooks.update(hooks)


async def dispatch_prompt_hooks(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    """Apply the plugins' changes to the request and publish it to observers.

    Raises MeshError PLUGIN_FAILED.
    """
    if event_pb2.HOOK_KIND_BEFORE_MODEL_RESOLVE in assignment.active_hooks:
        await _choose_model(assignment, request)
    if event_pb2.HOOK_KIND_BEFORE_PROMPT_BUILD in assignment.active_hooks:
        await _change_prompt(assignment, request)
    if event_pb2.HOOK_KIND_LLM_INPUT in assignment.active_hooks:
        event = observed_pb2.LlmInputEvent(
            models=[request.model, *_fallbacks(request)],
            tool_names=[tool.name for tool in request.tools],
            message_count=len(request.messages),
            system_prompt=request.system_prompt,
            messages=map(_texts_of, request.messages),
        )
        await _publish(assignment, f"llm_input:{uuid.uuid4().hex}", llm_input=event)


async def publish_llm_output(assignment: Assignment, completion: generation_pb2.Completion) -> None:
    """Publish the model's answer to observers."""
    if event_pb2.HOOK_KIND_LLM_OUTPUT not in assignment.active_hooks:
        return
    answer = completion.message
    event = observed_pb2.LlmOutputEvent(
        model=answer.model,
        input_token_count=answer.usage.input_token_count,
        output_token_count=answer.usage.output_token_count,
        message=_texts_of(answer),
    )
    await _publish(assignment, f"llm_output:{uuid.uuid4().hex}", llm_output=event)


@dataclass(frozen=True, slots=True)
class AllowedCall:
    """A call as the plugins allow it.

    With an `approval_reason`, a person must approve it: the plugins in `approval_by` want that.
    """

    call: message_pb2.ToolCall
    approval_reason: str = ""
    approval_by: tuple[str, ...] = ()


async def dispatch_before_tool_call(
    assignment: Assignment, call: message_pb2.ToolCall
) -> AllowedCall | ToolOutcome:
    """Return the call as the plugins allow it, or the outcome of a blocked call.

    A rewritten call names the plugins in `rewrittenBy`. Raises PLUGIN_FAILED if the run is to wait
    for a plugin that gives no answer.
    """
    if event_pb2.HOOK_KIND_BEFORE_TOOL_CALL not in assignment.active_hooks:
        return AllowedCall(call)
    try:
        arguments = call_arguments(call)
        redacted = redact_files(call.name, arguments)
        arguments_json = json.dumps(redacted)
    except ToolRefused as error:
        return ToolOutcome(str(error), error.reason)
    except RecursionError:
        return refusal("INVALID_ARGUMENTS", "the arguments are nested too deep")
    if len(arguments_json) > _MAX_ARGUMENTS_BYTES:
        return refusal(
            "INVALID_ARGUMENTS",
            f"the arguments have more than {_MAX_ARGUMENTS_BYTES} bytes as JSON, and a plugin that has to"
            " allow the call reads no more",
        )
    event = event_pb2.BeforeToolCallEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        tool_name=call.name,
        tool_call_id=call.tool_call_id,
        arguments_json=arguments_json,
    )
    peers = assignment.peers
    request = run_hook_service_pb2.DispatchBeforeToolCallRequest(event=event)
    try:
        answer = await call_with_retry(
            peers.hook, peers.run_hooks.DispatchBeforeToolCall, request, timeout_seconds=_DISPATCH_SECONDS
        )
    except MeshError as error:
        if error.reason is not Reason.PLUGIN_FAILED or is_transient(error):
            raise
        return refusal(error.reason.value, error.message)
    report = assignment.run_events.add_decision
    if answer.decision.HasField("block"):
        report(answer.decided_by, blocked_call=decided_call(call.name))
        return refusal(BLOCKED, answer.decision.block.reason)
    approval_by = _approval_by(answer)
    if not answer.decision.HasField("rewrite"):
        return AllowedCall(call, answer.approval_reason, approval_by)
    try:
        rewritten = restore_files(json.loads(answer.decision.rewrite.arguments_json), arguments, redacted)
        if rewritten != arguments:
            call = replace_arguments(call, rewritten, rewrittenBy=list(answer.rewritten_by))
            report(answer.rewritten_by, rewritten_call=decided_call(call.name))
        return AllowedCall(call, answer.approval_reason, approval_by)
    except (ValueError, TypeError, RecursionError):
        plugins = ", ".join(answer.rewritten_by)
        return refusal(
            Reason.PLUGIN_FAILED.value, f"the arguments that {plugins} gave the call cannot be read"
        )


def _approval_by(answer: run_hook_service_pb2.DispatchBeforeToolCallResponse) -> tuple[str, ...]:
    """Return the plugins that want an approval. Each plugin has given one answer."""
    if not answer.approval_reason:
        return ()
    return tuple(plugin for plugin in answer.decided_by if plugin not in answer.rewritten_by)


async def publish_tool_outcome(
    assignment: Assignment, call: OpenCall, outcome: ToolOutcome, latency: timedelta
) -> None:
    """Publish the outcome of a tool call to observers.

    The event key is the same on every runner that makes the call.
    """
    if event_pb2.HOOK_KIND_AFTER_TOOL_CALL not in assignment.active_hooks:
        return
    event = observed_pb2.AfterToolCallEvent(
        tool_name=call.call.name,
        tool_call_id=call.call.tool_call_id,
        error_reason=outcome.error_reason,
        result_text=outcome.whole_text[:_MAX_RESULT_CHARS],
    )
    event.latency.FromTimedelta(latency)
    key = f"after_tool_call:v1:{call.answer_entry_id}:{call.index}"
    await _publish(assignment, key, after_tool_call=event)


async def _choose_model(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    peers = assignment.peers
    event = event_pb2.BeforeModelResolveEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        models=[request.model, *_fallbacks(request)],
    )
    answer = await call_with_retry(
        peers.hook,
        peers.run_hooks.DispatchBeforeModelResolve,
        run_hook_service_pb2.DispatchBeforeModelResolveRequest(event=event),
        timeout_seconds=_DISPATCH_SECONDS,
    )
    chosen = answer.decision.model
    if not chosen or chosen == request.model:
        return
    listed = _fallbacks(request)
    others = [model for model in (request.model, *listed) if model and model != chosen]
    del listed[:]
    listed.extend(others[:_MAX_FALLBACKS])
    request.model = chosen
    assignment.run_events.add_decision([answer.decided_by], chosen_model=chosen_model(chosen))


async def _change_prompt(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    peers = assignment.peers
    event = event_pb2.BeforePromptBuildEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        message_count=len(request.messages),
        tool_names=[tool.name for tool in request.tools],
        system_prompt=request.system_prompt,
    )
    answer = await call_with_retry(
        peers.hook,
        peers.run_hooks.DispatchBeforePromptBuild,
        run_hook_service_pb2.DispatchBeforePromptBuildRequest(event=event),
        timeout_seconds=_DISPATCH_SECONDS,
    )
    decision = answer.decision
    system_prompt = decision.system_prompt or request.system_prompt
    changed = run_event_pb2.ChangedPrompt(
        system_prompt_replaced=system_prompt != request.system_prompt, context_added=bool(decision.context)
    )
    request.system_prompt = "\n\n".join(filter(None, (system_prompt, decision.context)))
    if decision.HasField("tools"):
        kept = [tool for tool in request.tools if tool.name in decision.tools.names]
        changed.removed_tool_count = len(request.tools) - len(kept)
        del request.tools[:]
        request.tools.extend(kept)
    if changed.ByteSize():  # Something is set.
        assignment.run_events.add_decision(answer.decided_by, changed_prompt=changed)


async def _publish(assignment: Assignment, key: str, **event: Any) -> None:
    peers = assignment.peers
    observed = observed_pb2.ObservedEvent(
        event_key=key,
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        **event,
    )
    observed.event_time.FromDatetime(utc_now())
    await call_with_retry(
        peers.hook, peers.hooks.PublishEvents, hook_service_pb2.PublishEventsRequest(events=[observed])
    )


def _fallbacks(request: router_pb.GenerateRequest) -> MutableSequence[str]:
    return request.fallbacks.models if request.HasField("fallbacks") else request.fallback_models


def _texts_of(message: message_pb2.Message) -> message_pb2.Message:
    """Return the message without images and calls: what they hold is only for their recipients."""
    texts = message_pb2.Message()
    texts.CopyFrom(message)
    del texts.content[:]
    texts.content.extend(block for block in message.content if block.HasField("text"))
    return texts
