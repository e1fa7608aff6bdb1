"""Handlers of a plugin: found by their mark, called with a typed event, their answers checked as the mesh checks them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import protovalidate
from google.protobuf.message import Message
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb

from spawnmesh_client.hooks import decisions

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__spawnmesh_hooks__"


class HandlerFailed(Exception):
    """A handler answered what the mesh would take for a failure of the plugin; the text says what about it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A hook that wants an answer: its messages, and what a handler that returns nothing has said."""

    request: type[Message]
    response: Callable[..., Message]
    no_objection: Callable[[], Message]


ASKED: Mapping[str, Asked] = {
    "before_spawn": Asked(pb.HandleBeforeSpawnRequest, pb.HandleBeforeSpawnResponse, decisions.allow),
    "before_agent_finalize": Asked(
        pb.HandleBeforeAgentFinalizeRequest,
        pb.HandleBeforeAgentFinalizeResponse,
        decisions.go_on,
    ),
    "before_model_resolve": Asked(
        pb.HandleBeforeModelResolveRequest,
        pb.HandleBeforeModelResolveResponse,
        lambda: decisions.use_model(""),
    ),
    "before_prompt_build": Asked(
        pb.HandleBeforePromptBuildRequest,
        pb.HandleBeforePromptBuildResponse,
        decisions.change_prompt,
    ),
    "before_tool_call": Asked(pb.HandleBeforeToolCallRequest, pb.HandleBeforeToolCallResponse, decisions.proceed),
    "delivery_target": Asked(
        pb.HandleDeliveryTargetRequest,
        pb.HandleDeliveryTargetResponse,
        lambda: decisions.deliver_to(""),
    ),
    "before_compaction": Asked(
        pb.HandleBeforeCompactionRequest,
        pb.HandleBeforeCompactionResponse,
        decisions.compact,
    ),
}

OBSERVED = (
    "subagent_spawned",
    "subagent_ended",
    "llm_input",
    "llm_output",
    "after_tool_call",
    "agent_end",
    "session_start",
    "session_end",
    "after_compaction",
)


def hook(name: str) -> Callable[[F], F]:
    """Marks a function, plain or async, as the handler of a hook such as `before_agent_finalize`; it is given the hook's event.

    Observers are given the whole `ObservedEvent`. Raises ValueError for a hook that there is not.
    """
    if name not in ASKED and name not in OBSERVED:
        raise ValueError(f"there is no hook {name!r}; there are {', '.join(sorted((*ASKED, *OBSERVED)))}")

    def mark(function: F) -> F:
        setattr(function, _MARK, (*getattr(function, _MARK, ()), name))
        return function

    return mark


class Handlers:
    """The handlers of a module, or these functions: one for each hook. Raises ValueError for two, or none at all."""

    def __init__(self, source: ModuleType | Iterable[Callable[..., Any]]) -> None:
        found: Iterable[Any] = vars(source).values() if isinstance(source, ModuleType) else source
        self._by_hook: dict[str, Callable[..., Any]] = {}
        for function in found:
            for name in getattr(function, _MARK, ()) if callable(function) else ():
                if self._by_hook.setdefault(name, function) is not function:
                    raise ValueError(f"two functions handle {name}")
        if not self._by_hook:
            raise ValueError("no function is marked with @hook")

    @property
    def hooks(self) -> list[str]:
        """The hooks to register for."""
        return sorted(self._by_hook)

    async def ask(self, name: str, event: Message) -> Message:
        """The response of a hook that wants an answer; without a handler, no objection. Raises HandlerFailed, or what the handler raises."""
        asked = ASKED[name]
        decision = await self._call(name, event)
        try:
            response = asked.response(decision=asked.no_objection() if decision is None else decision)
        except TypeError:
            raise HandlerFailed(f"{name} was answered with a {type(decision).__name__}") from None
        violations = protovalidate.collect_violations(response)
        if violations:
            raise HandlerFailed(f"{name} was answered with what the contract refuses: {violations[0].proto.message}")
        return response

    async def tell(self, event: Any) -> None:
        """Tells the handler of an observed event, if there is one. Raises what the handler raises."""
        await self._call(event.WhichOneof("event") or "", event)

    async def _call(self, name: str, event: Message) -> Any:
        handler = self._by_hook.get(name)
        if handler is None:
            return None
        answer = handler(event)
        return await answer if inspect.isawaitable(answer) else answer
