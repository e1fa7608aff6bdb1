"""Handlers of a plugin: find them by their mark, call them with events, check decisions as the
mesh does.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import protovalidate
from google.protobuf.message import Message
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb

from spawnmesh_plugin import decisions

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__spawnmesh_hooks__"


class HandlerFailed(Exception):
    """A handler returned what the mesh would treat as a failure of the plugin; the text says
    what.
    """


@dataclass(frozen=True, slots=True)
class RequestHook:
    """A hook that expects a decision: its messages, and the decision of a handler that returns
    nothing.
    """

    request: type[Message]
    response: Callable[..., Message]
    no_objection: Callable[[], Message]


REQUEST_HOOKS: Mapping[str, RequestHook] = {
    "before_spawn": RequestHook(pb.HandleBeforeSpawnRequest, pb.HandleBeforeSpawnResponse, decisions.allow),
    "before_agent_finalize": RequestHook(
        pb.HandleBeforeAgentFinalizeRequest,
        pb.HandleBeforeAgentFinalizeResponse,
        decisions.go_on,
    ),
    "before_model_resolve": RequestHook(
        pb.HandleBeforeModelResolveRequest,
        pb.HandleBeforeModelResolveResponse,
        lambda: decisions.use_model(""),
    ),
    "before_prompt_build": RequestHook(
        pb.HandleBeforePromptBuildRequest,
        pb.HandleBeforePromptBuildResponse,
        decisions.change_prompt,
    ),
    "before_tool_call": RequestHook(
        pb.HandleBeforeToolCallRequest, pb.HandleBeforeToolCallResponse, decisions.proceed
    ),
    "delivery_target": RequestHook(
        pb.HandleDeliveryTargetRequest,
        pb.HandleDeliveryTargetResponse,
        lambda: decisions.deliver_to(""),
    ),
    "before_compaction": RequestHook(
        pb.HandleBeforeCompactionRequest,
        pb.HandleBeforeCompactionResponse,
        decisions.compact,
    ),
}

OBSERVED_HOOKS = (
    "subagent_spawned",
    "subagent_ended",
    "llm_input",
    "llm_output",
    "after_tool_call",
    "agent_end",
    "session_start",
    "session_end",
    "after_compaction",
    "approval_requested",
    "approval_escalated",
    "approval_decided",
    "budget_reached",
    "budget_changed",
    "files_published",
)


def hook(name: str) -> Callable[[F], F]:
    """Mark a function, plain or async, as the handler of a hook such as `before_agent_finalize`.

    It receives the hook's event; observers receive the `ObservedEvent`. Raises ValueError for an
    unknown hook.
    """
    if name not in REQUEST_HOOKS and name not in OBSERVED_HOOKS:
        known = ", ".join(sorted((*REQUEST_HOOKS, *OBSERVED_HOOKS)))
        raise ValueError(f"there is no hook {name!r}; there are {known}")

    def mark(function: F) -> F:
        setattr(function, _MARK, (*getattr(function, _MARK, ()), name))
        return function

    return mark


class Handlers:
    """The handlers of a module or of a list of functions, at most one for each hook.

    Plain functions run one after the other in a thread of their own, so that the process answers
    health checks meanwhile. Raises ValueError for two handlers of a hook, or for none at all.
    """

    def __init__(self, source: ModuleType | Iterable[Callable[..., Any]]) -> None:
        found: Iterable[Any] = vars(source).values() if isinstance(source, ModuleType) else source
        self._by_hook: dict[str, Callable[..., Any]] = {}
        for function in found:
            for name in getattr(function, _MARK, ()) if callable(function) else ():
                if self._by_hook.setdefault(name, function) is not function:
                    raise ValueError(f"two functions handle {name}")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plugin-handlers")
        if not self._by_hook:
            raise ValueError("no function is marked with @hook")

    @property
    def hooks(self) -> list[str]:
        """The hooks to register for."""
        return sorted(self._by_hook)

    async def handle(self, name: str, event: Message) -> Message:
        """Return the response to a request hook; without a handler, no objection.

        Raises HandlerFailed, or what the handler raises.
        """
        request_hook = REQUEST_HOOKS[name]
        decision = await self._call(name, event)
        try:
            response = request_hook.response(
                decision=request_hook.no_objection() if decision is None else decision
            )
        except TypeError:
            raise HandlerFailed(f"{name} was answered with a {type(decision).__name__}") from None
        violations = protovalidate.collect_violations(response)
        if violations:
            raise HandlerFailed(
                f"{name} was answered with what the contract refuses: {violations[0].proto.message}"
            )
        return response

    async def observe(self, event: Any) -> None:
        """Call the handler of an observed event, if there is one.

        Raises what the handler raises.
        """
        await self._call(event.WhichOneof("event") or "", event)

    async def _call(self, name: str, event: Message) -> Any:
        handler = self._by_hook.get(name)
        if handler is None:
            return None
        if inspect.iscoroutinefunction(handler):
            return await handler(event)
        run = copy_context().run
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, run, handler, event)
        return await answer if inspect.isawaitable(answer) else answer
