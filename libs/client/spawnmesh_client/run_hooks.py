"""The plugins of a run, as the loop of its turns asks and notifies them.

The runner and the workers of this client have the same loop of hooks, each with its own calls.
"""

import uuid
from collections.abc import Callable, Coroutine, MutableSequence, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2, observed_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as rpc
from spawnmesh.model_router.v1.generation_pb2 import Completion
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest
from spawnmesh.session.v1.run_event_pb2 import ChangedPrompt, ChosenModel
from spawnmesh_core.clock import utc_now

from spawnmesh_client.unfinished_turn import OpenCall

DISPATCH_SECONDS = 660.0
"""The timeout of a call that waits for a plugin, which may take ten minutes."""
_CALL_SECONDS = 10.0
_MAX_RESULT_CHARS = 64 * 1024
_MAX_FALLBACKS = 16


class HookCall(Protocol):
    """Makes a call of the hook service by the name of its RPC, and may repeat it.

    PublishEvents is an RPC of HookService, and the others are of RunHookService.
    """

    def __call__(self, rpc: str, request: Any, *, timeout_seconds: float) -> Coroutine[Any, Any, Any]: ...


OnDecision = Callable[[Sequence[str], ChosenModel | ChangedPrompt], None]
"""Receives the plugins that decided, and what they decided."""


def ignore_decision(_plugins: Sequence[str], _decided: ChosenModel | ChangedPrompt) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Dispatches the hooks of one run that have a subscriber, as `active` has them."""

    session_id: str
    run_id: str
    agent_id: str
    call: HookCall
    active: set[int] = field(default_factory=set)
    on_decision: OnDecision = ignore_decision

    @property
    def judges_calls(self) -> bool:
        """True if plugins judge calls of tools."""
        return event_pb2.HOOK_KIND_BEFORE_TOOL_CALL in self.active

    async def refresh(self) -> None:
        """List the hooks that have a subscriber. The others are not dispatched until then."""
        request, found = rpc.ListActiveHooksRequest(), set[int]()
        while True:
            page = await self.call("ListActiveHooks", request, timeout_seconds=_CALL_SECONDS)
            found.update(page.hooks)
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        self.active.clear()
        self.active.update(found)

    async def change_request(self, request: GenerateRequest) -> None:
        """Apply the plugins' changes to the request of a turn, and publish it to observers.

        Raises MeshError PLUGIN_FAILED.
        """
        if event_pb2.HOOK_KIND_BEFORE_MODEL_RESOLVE in self.active:
            await self._choose_model(request)
        if event_pb2.HOOK_KIND_BEFORE_PROMPT_BUILD in self.active:
            await self._change_prompt(request)
        if event_pb2.HOOK_KIND_LLM_INPUT in self.active:
            event = observed_pb2.LlmInputEvent(
                models=[request.model, *_fallbacks(request)],
                tool_names=[tool.name for tool in request.tools],
                message_count=len(request.messages),
                system_prompt=request.system_prompt,
                messages=map(_texts_of, request.messages),
            )
            await self._publish(f"llm_input:{uuid.uuid4().hex}", llm_input=event)

    async def publish_answer(self, completion: Completion) -> None:
        """Publish the model's answer to observers."""
        if event_pb2.HOOK_KIND_LLM_OUTPUT not in self.active:
            return
        answer = completion.message
        event = observed_pb2.LlmOutputEvent(
            model=answer.model,
            input_token_count=answer.usage.input_token_count,
            output_token_count=answer.usage.output_token_count,
            message=_texts_of(answer),
        )
        await self._publish(f"llm_output:{uuid.uuid4().hex}", llm_output=event)

    async def publish_outcome(self, call: OpenCall, text: str, reason: str, latency: timedelta) -> None:
        """Publish the outcome of a tool call to observers. `reason` is empty if it succeeded.

        The event key is the same in every process that makes the call.
        """
        if event_pb2.HOOK_KIND_AFTER_TOOL_CALL not in self.active:
            return
        event = observed_pb2.AfterToolCallEvent(
            tool_name=call.call.name,
            tool_call_id=call.call.tool_call_id,
            error_reason=reason,
            result_text=text[:_MAX_RESULT_CHARS],
        )
        event.latency.FromTimedelta(latency)
        key = f"after_tool_call:v1:{call.answer_entry_id}:{call.index}"
        await self._publish(key, after_tool_call=event)

    async def _choose_model(self, request: GenerateRequest) -> None:
        event = event_pb2.BeforeModelResolveEvent(
            session_id=self.session_id,
            run_id=self.run_id,
            agent_id=self.agent_id,
            models=[request.model, *_fallbacks(request)],
        )
        asked = rpc.DispatchBeforeModelResolveRequest(event=event)
        answer = await self.call("DispatchBeforeModelResolve", asked, timeout_seconds=DISPATCH_SECONDS)
        chosen = answer.decision.model
        if not chosen or chosen == request.model:
            return
        listed = _fallbacks(request)
        others = [model for model in (request.model, *listed) if model and model != chosen]
        del listed[:]
        listed.extend(others[:_MAX_FALLBACKS])
        request.model = chosen
        self.on_decision([answer.decided_by], ChosenModel(model=chosen))

    async def _change_prompt(self, request: GenerateRequest) -> None:
        event = event_pb2.BeforePromptBuildEvent(
            session_id=self.session_id,
            run_id=self.run_id,
            agent_id=self.agent_id,
            message_count=len(request.messages),
            tool_names=[tool.name for tool in request.tools],
            system_prompt=request.system_prompt,
        )
        asked = rpc.DispatchBeforePromptBuildRequest(event=event)
        answer = await self.call("DispatchBeforePromptBuild", asked, timeout_seconds=DISPATCH_SECONDS)
        decision = answer.decision
        system_prompt = decision.system_prompt or request.system_prompt
        changed = ChangedPrompt(
            system_prompt_replaced=system_prompt != request.system_prompt,
            context_added=bool(decision.context),
        )
        request.system_prompt = "\n\n".join(filter(None, (system_prompt, decision.context)))
        if decision.HasField("tools"):
            kept = [tool for tool in request.tools if tool.name in decision.tools.names]
            changed.removed_tool_count = len(request.tools) - len(kept)
            del request.tools[:]
            request.tools.extend(kept)
        if changed.ByteSize():  # Something is set.
            self.on_decision(answer.decided_by, changed)

    async def _publish(self, key: str, **event: Any) -> None:
        observed = observed_pb2.ObservedEvent(
            event_key=key,
            session_id=self.session_id,
            run_id=self.run_id,
            agent_id=self.agent_id,
            **event,
        )
        observed.event_time.FromDatetime(utc_now())
        request = hook_service_pb2.PublishEventsRequest(events=[observed])
        await self.call("PublishEvents", request, timeout_seconds=_CALL_SECONDS)


def _fallbacks(request: GenerateRequest) -> MutableSequence[str]:
    return request.fallbacks.models if request.HasField("fallbacks") else request.fallback_models


def _texts_of(message: Message) -> Message:
    """Return the message without images and calls: what they hold is only for their recipients."""
    texts = Message()
    texts.CopyFrom(message)
    del texts.content[:]
    texts.content.extend(block for block in message.content if block.HasField("text"))
    return texts
