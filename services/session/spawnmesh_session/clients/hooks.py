"""Calls of the hook service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent, DispatchDeliveryTargetRequest
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent, BeforeSpawnEvent
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh_runtime.peers import Peer

if TYPE_CHECKING:  # The types of asyncio stubs exist only for type checkers.
    from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceAsyncStub

_FINALIZE_SECONDS = 660.0  # A plugin may take ten minutes. The caller's own deadline also applies.


@dataclass(frozen=True, slots=True)
class Hooks:
    """The plugins of tenants. The before_spawn hooks have `spawn_seconds`."""

    peer: Peer
    timeout_seconds: float
    spawn_seconds: float

    @property
    def _stub(self) -> "HookServiceAsyncStub":
        return HookServiceStub(self.peer.channel)

    async def before_spawn(self, event: BeforeSpawnEvent) -> pb.DispatchBeforeSpawnResponse:
        """Dispatch before_spawn: allow or deny."""
        request = pb.DispatchBeforeSpawnRequest(event=event)
        return await self.peer.unary(
            self._stub.DispatchBeforeSpawn, request, timeout_seconds=self.spawn_seconds
        )

    async def has_allowed_spawn(self, session_id: str) -> bool:
        """Return whether a plugin has allowed the session, also if the answer was lost.

        A no is final once the dispatch, of at most `spawn_seconds`, has ended.
        """
        request = pb.GetSpawnDecisionRequest(session_id=session_id)
        answer = await self.peer.unary(
            self._stub.GetSpawnDecision, request, timeout_seconds=self.timeout_seconds
        )
        return answer.allowed

    async def before_finalize(
        self, event: BeforeAgentFinalizeEvent, request_id: str
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        """Dispatch before_agent_finalize: continue or revise. The same key gets the same answer."""
        request = pb.DispatchBeforeAgentFinalizeRequest(event=event, request_id=request_id)
        return await self.peer.unary(
            self._stub.DispatchBeforeAgentFinalize, request, timeout_seconds=_FINALIZE_SECONDS
        )

    async def delivery_target(self, event: DeliveryTargetEvent) -> str:
        """Dispatch delivery_target; empty if no plugin names a target."""
        request = DispatchDeliveryTargetRequest(event=event)
        answer = await self.peer.unary(
            self._stub.DispatchDeliveryTarget, request, timeout_seconds=self.timeout_seconds
        )
        return answer.decision.target

    async def publish(self, events: Sequence[ObservedEvent]) -> None:
        """Publish events, each at least once to every observer."""
        request = pb.PublishEventsRequest(events=events)
        await self.peer.unary(self._stub.PublishEvents, request, timeout_seconds=self.timeout_seconds)
