"""Test handlers without a mesh."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from spawnmesh.hook.v1 import compaction_pb2, decision_pb2, delivery_target_pb2, event_pb2, observed_pb2
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_plugin.handlers import Handlers


class FakeDispatch:
    """Call handlers as the mesh does, with events made of keyword arguments.

    A decision that the mesh would refuse raises HandlerFailed. Use it as `fake =
    FakeDispatch(my_plugin)`, then `await fake.before_agent_finalize(draft_text="…")`.
    """

    def __init__(self, source: ModuleType | Iterable[Callable[..., Any]]) -> None:
        self.handlers = Handlers(source)
        self.session_id = new_id(IdKind.SESSION)
        self.run_id = new_id(IdKind.RUN)

    async def before_spawn(self, **facts: Any) -> decision_pb2.SpawnDecision:
        """Return the plugin's decision on a spawn."""
        event = event_pb2.BeforeSpawnEvent(**{"session_id": self.session_id, **facts})
        decision: decision_pb2.SpawnDecision = await self._dispatch("before_spawn", event)
        return decision

    async def before_agent_finalize(self, **facts: Any) -> decision_pb2.FinalizeDecision:
        """Return the plugin's decision on a draft."""
        text = facts.get("draft_text", "")
        event = event_pb2.BeforeAgentFinalizeEvent(
            **{**self._run, "max_revision_count": 3, "draft_bytes": len(text.encode()), **facts}
        )
        decision: decision_pb2.FinalizeDecision = await self._dispatch("before_agent_finalize", event)
        return decision

    async def before_model_resolve(self, **facts: Any) -> decision_pb2.ModelDecision:
        """Return the model that the plugin chooses."""
        decision: decision_pb2.ModelDecision = await self._dispatch(
            "before_model_resolve", event_pb2.BeforeModelResolveEvent(**{**self._run, **facts})
        )
        return decision

    async def before_prompt_build(self, **facts: Any) -> decision_pb2.PromptDecision:
        """Return the plugin's changes of a prompt."""
        decision: decision_pb2.PromptDecision = await self._dispatch(
            "before_prompt_build", event_pb2.BeforePromptBuildEvent(**{**self._run, **facts})
        )
        return decision

    async def before_tool_call(self, **facts: Any) -> decision_pb2.ToolCallDecision:
        """Return the plugin's decision on a tool call."""
        decision: decision_pb2.ToolCallDecision = await self._dispatch(
            "before_tool_call", event_pb2.BeforeToolCallEvent(**{**self._run, **facts})
        )
        return decision

    async def delivery_target(self, **facts: Any) -> delivery_target_pb2.DeliveryTargetDecision:
        """Return the target to which the plugin delivers the end of a session."""
        decision: delivery_target_pb2.DeliveryTargetDecision = await self._dispatch(
            "delivery_target",
            delivery_target_pb2.DeliveryTargetEvent(
                **{**self._run, "outcome": END_OUTCOME_SUCCEEDED, **facts}
            ),
        )
        return decision

    async def before_compaction(self, **facts: Any) -> compaction_pb2.CompactionDecision:
        """Return the plugin's decision on a compaction."""
        decision: compaction_pb2.CompactionDecision = await self._dispatch(
            "before_compaction", compaction_pb2.BeforeCompactionEvent(**{**self._run, **facts})
        )
        return decision

    async def observe(self, event_key: str = "a-key", **event: Any) -> None:
        """Deliver an event, such as `agent_end=AgentEndEvent(outcome=END_OUTCOME_FAILED)`."""
        await self.handlers.observe(
            observed_pb2.ObservedEvent(**{**self._run, "event_key": event_key, **event})
        )

    @property
    def _run(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "run_id": self.run_id}

    async def _dispatch(self, name: str, event: Any) -> Any:
        response: Any = await self.handlers.handle(name, event)
        return response.decision
