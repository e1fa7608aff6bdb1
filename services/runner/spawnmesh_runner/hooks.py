"""What the tenant's plugins are asked and told of a run: its prompts, its models and its tool calls."""

import json
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2, observed_pb2, run_hook_service_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import OpenCall
from spawnmesh_runner.handed_over import with_files, without_files
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.tools.call import BLOCKED, Outcome, call_arguments, call_with, refusal
from spawnmesh_runner.tools.tool import ToolRefused

_ASK_SECONDS = 660.0  # A plugin may take ten minutes.
_MAX_RESULT_CHARS = 64 * 1024
_MAX_FALLBACKS = 16


async def see_hooks(assignment: Assignment) -> None:
    """Learns which hooks anybody listens to; the others are not dispatched until this is asked again."""
    mesh = assignment.mesh
    request = run_hook_service_pb2.ListActiveHooksRequest()
    answer = await persistently(mesh.hook, mesh.run_hooks.ListActiveHooks, request)
    assignment.listened.clear()
    assignment.listened.update(answer.hooks)


async def shape_prompt(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    """Changes the request as the plugins want it, and tells who observes it. Raises MeshError PLUGIN_FAILED."""
    if event_pb2.HOOK_KIND_BEFORE_MODEL_RESOLVE in assignment.listened:
        await _choose_model(assignment, request)
    if event_pb2.HOOK_KIND_BEFORE_PROMPT_BUILD in assignment.listened:
        await _change_prompt(assignment, request)
    if event_pb2.HOOK_KIND_LLM_INPUT in assignment.listened:
        told = observed_pb2.LlmInputEvent(
            models=[request.model, *_others(request)],
            tool_names=[tool.name for tool in request.tools],
            message_count=len(request.messages),
            system_prompt=request.system_prompt,
            messages=map(_texts_of, request.messages),
        )
        await _publish(assignment, f"llm_input:{uuid.uuid4().hex}", llm_input=told)


async def tell_answer(assignment: Assignment, completion: generation_pb2.Completion) -> None:
    """Tells who observes what a model answers."""
    if event_pb2.HOOK_KIND_LLM_OUTPUT not in assignment.listened:
        return
    answer = completion.message
    told = observed_pb2.LlmOutputEvent(
        model=answer.model,
        input_token_count=answer.usage.input_token_count,
        output_token_count=answer.usage.output_token_count,
        message=_texts_of(answer),
    )
    await _publish(assignment, f"llm_output:{uuid.uuid4().hex}", llm_output=told)


async def judge_call(assignment: Assignment, call: message_pb2.ToolCall) -> message_pb2.ToolCall | Outcome:
    """The call as the plugins let it be made, or the outcome of one that they do not. One that they changed names them in `rewrittenBy`."""
    if event_pb2.HOOK_KIND_BEFORE_TOOL_CALL not in assignment.listened:
        return call
    try:
        arguments = call_arguments(call)
        shown = without_files(call.name, arguments)
        arguments_json = json.dumps(shown)
    except ToolRefused as error:
        return Outcome(str(error), error.reason)
    except RecursionError:
        return refusal("INVALID_ARGUMENTS", "the arguments are nested too deep")
    event = event_pb2.BeforeToolCallEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        tool_name=call.name,
        tool_call_id=call.tool_call_id,
        arguments_json=arguments_json,
    )
    mesh = assignment.mesh
    request = run_hook_service_pb2.DispatchBeforeToolCallRequest(event=event)
    try:
        answer = await persistently(
            mesh.hook, mesh.run_hooks.DispatchBeforeToolCall, request, timeout_seconds=_ASK_SECONDS
        )
    except MeshError as error:
        if error.reason is not Reason.PLUGIN_FAILED:
            raise
        return refusal(error.reason.value, error.message)
    if answer.decision.HasField("block"):
        return refusal(BLOCKED, answer.decision.block.reason)
    if not answer.decision.HasField("rewrite"):
        return call
    try:
        rewritten = with_files(json.loads(answer.decision.rewrite.arguments_json), arguments, shown)
        return call if rewritten == arguments else call_with(call, rewritten, rewrittenBy=list(answer.decided_by))
    except (ValueError, TypeError, RecursionError):
        plugins = ", ".join(answer.decided_by)
        return refusal(Reason.PLUGIN_FAILED.value, f"the arguments that {plugins} gave the call cannot be read")


async def tell_outcome(assignment: Assignment, call: OpenCall, outcome: Outcome, latency: timedelta) -> None:
    """Tells who observes tool calls, under a key that a runner which makes the call again would use too."""
    if event_pb2.HOOK_KIND_AFTER_TOOL_CALL not in assignment.listened:
        return
    told = observed_pb2.AfterToolCallEvent(
        tool_name=call.call.name,
        tool_call_id=call.call.tool_call_id,
        error_reason=outcome.error_reason,
        result_text=outcome.text[:_MAX_RESULT_CHARS],
    )
    told.latency.FromTimedelta(latency)
    key = f"after_tool_call:v1:{call.answer_entry_id}:{call.index}"
    await _publish(assignment, key, after_tool_call=told)


async def _choose_model(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    mesh = assignment.mesh
    event = event_pb2.BeforeModelResolveEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        models=[request.model, *_others(request)],
    )
    answer = await persistently(
        mesh.hook,
        mesh.run_hooks.DispatchBeforeModelResolve,
        run_hook_service_pb2.DispatchBeforeModelResolveRequest(event=event),
        timeout_seconds=_ASK_SECONDS,
    )
    chosen = answer.decision.model
    if not chosen or chosen == request.model:
        return
    listed = request.fallbacks.models if request.HasField("fallbacks") else request.fallback_models
    others = [model for model in (request.model, *listed) if model and model != chosen]
    del listed[:]
    listed.extend(others[:_MAX_FALLBACKS])
    request.model = chosen


async def _change_prompt(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    mesh = assignment.mesh
    event = event_pb2.BeforePromptBuildEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        message_count=len(request.messages),
        tool_names=[tool.name for tool in request.tools],
        system_prompt=request.system_prompt,
    )
    answer = await persistently(
        mesh.hook,
        mesh.run_hooks.DispatchBeforePromptBuild,
        run_hook_service_pb2.DispatchBeforePromptBuildRequest(event=event),
        timeout_seconds=_ASK_SECONDS,
    )
    decision = answer.decision
    system_prompt = decision.system_prompt or request.system_prompt
    request.system_prompt = "\n\n".join(filter(None, (system_prompt, decision.context)))
    if decision.HasField("tools"):
        offered = [tool for tool in request.tools if tool.name in decision.tools.names]
        del request.tools[:]
        request.tools.extend(offered)


async def _publish(assignment: Assignment, key: str, **event: Any) -> None:
    mesh = assignment.mesh
    observed = observed_pb2.ObservedEvent(
        event_key=key,
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        **event,
    )
    observed.event_time.FromDatetime(utc_now())
    await persistently(mesh.hook, mesh.hooks.PublishEvents, hook_service_pb2.PublishEventsRequest(events=[observed]))


def _others(request: router_pb.GenerateRequest) -> Iterable[str]:
    return request.fallbacks.models if request.HasField("fallbacks") else request.fallback_models


def _texts_of(message: message_pb2.Message) -> message_pb2.Message:
    """The message without images and calls: what was handed over in them is nowhere but with whom it was meant for."""
    told = message_pb2.Message()
    told.CopyFrom(message)
    del told.content[:]
    told.content.extend(block for block in message.content if block.HasField("text"))
    return told
