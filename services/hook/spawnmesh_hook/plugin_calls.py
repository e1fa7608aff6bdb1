"""Calls of plugins: each in its own time, each logged, a malformed answer being none."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from google.protobuf.message import Message
from grpc import aio
from spawnmesh.hook.v1 import event_pb2
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceStub
from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import traced

from spawnmesh_hook import answers, store
from spawnmesh_hook.answers import Failure
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.domain.decisions import Denial, Verdict
from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.plugins import HookKind, Plugin
from spawnmesh_hook.parse import parse_denial, parse_verdict
from spawnmesh_hook.plugin_peers import LeadsNowhere, PluginPeers
from spawnmesh_hook.render import finalize_event_for, spawn_event_for

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Call(Generic[Request, Answer]):
    """One call to make. `decision_of` names a valid answer in the log; `event_key` is remembered as heard with it, unless empty."""

    hook: HookKind
    session_id: str
    run_id: str
    method: Callable[[aio.Channel], aio.UnaryUnaryMultiCallable[Request, Answer]]
    request: Request
    decision_of: Callable[[Answer], str]
    event_key: str = ""


class PluginCalls:
    """Calls plugins in the name of this service for the tenant.

    Every call leaves a row in the log, written when the call is over and before its answer is acted on. A failure is an answer here, and
    what it means is the caller's to judge.
    """

    def __init__(self, database: Database, peers: PluginPeers) -> None:
        self._database = database
        self._peers = peers

    async def before_spawn(
        self, tenant_id: str, plugin: Plugin, event: event_pb2.BeforeSpawnEvent, budget: Budget
    ) -> Denial | Failure | None:
        """Asks whether the session may be spawned; None means it may."""
        call = _Call(
            hook=HookKind.BEFORE_SPAWN,
            session_id=event.session_id,
            run_id="",
            method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeSpawn,
            request=pb.HandleBeforeSpawnRequest(event=spawn_event_for(plugin, event)),
            decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
        )
        answer = await self._make(tenant_id, plugin, call, budget)
        return answer if isinstance(answer, Failure) else parse_denial(plugin.name, answer.decision)

    async def before_agent_finalize(
        self,
        tenant_id: str,
        plugin: Plugin,
        event: event_pb2.BeforeAgentFinalizeEvent,
        revision_count: int,
        budget: Budget,
    ) -> Verdict | Failure:
        """Asks whether the draft may be final."""
        call = _Call(
            hook=HookKind.BEFORE_AGENT_FINALIZE,
            session_id=event.session_id,
            run_id=event.run_id,
            method=lambda channel: HookHandlerServiceStub(channel).HandleBeforeAgentFinalize,
            request=pb.HandleBeforeAgentFinalizeRequest(event=finalize_event_for(plugin, event, revision_count)),
            decision_of=lambda answer: answer.decision.WhichOneof("decision") or "",
        )
        answer = await self._make(tenant_id, plugin, call, budget)
        return answer if isinstance(answer, Failure) else parse_verdict(plugin.name, answer.decision)

    async def subagent_ended(
        self, tenant_id: str, plugin: Plugin, event: event_pb2.SubagentEndedEvent, budget: Budget
    ) -> Failure | None:
        """Tells of the end, and remembers by the event's key that the plugin has heard."""
        call = _Call(
            hook=HookKind.SUBAGENT_ENDED,
            session_id=event.session_id,
            run_id=event.run_id,
            method=lambda channel: HookHandlerServiceStub(channel).HandleSubagentEnded,
            request=pb.HandleSubagentEndedRequest(event=event),
            decision_of=lambda answer: "told",
            event_key=event.event_key,
        )
        answer = await self._make(tenant_id, plugin, call, budget)
        return answer if isinstance(answer, Failure) else None

    async def _make(
        self, tenant_id: str, plugin: Plugin, call: _Call[Request, Answer], budget: Budget
    ) -> Answer | Failure:
        start_time, started = utc_now(), monotonic_seconds()
        answer: Answer | Failure = answers.ABANDONED
        async with traced("hook.call_plugin", spawnmesh__hook__plugin=plugin.name) as span:
            try:
                answer = await self._answer(tenant_id, plugin, call, min(plugin.timeout.total_seconds(), budget.left()))
            finally:
                decision = _FAILED if isinstance(answer, Failure) else call.decision_of(answer)
                delivery = store.Delivery(
                    plugin=plugin.name,
                    hook=call.hook,
                    session_id=call.session_id,
                    run_id=call.run_id,
                    start_time=start_time,
                    latency=timedelta(seconds=monotonic_seconds() - started),
                    decision=decision,
                    error=answer.error if isinstance(answer, Failure) else "",
                )
                span.set_attribute("spawnmesh.hook.decision", decision)
                await self._log(tenant_id, delivery, call.event_key)
        return answer

    async def _answer(
        self, tenant_id: str, plugin: Plugin, call: _Call[Request, Answer], seconds: float
    ) -> Answer | Failure:
        if seconds <= 0:
            return answers.NEVER_ASKED
        try:
            async with asyncio.timeout(seconds), self._peers.peer(parse_endpoint(plugin.endpoint)) as peer:
                with acting_for(tenant_id):
                    answer = await peer.unary(call.method(peer.channel), call.request, timeout_seconds=seconds)
        except TimeoutError:
            return answers.too_slow(seconds)
        except LeadsNowhere:
            return answers.LED_NOWHERE
        except MeshError as error:
            return answers.refused(error, seconds)
        return answers.malformed(answer) or answer

    async def _log(self, tenant_id: str, delivery: store.Delivery, event_key: str) -> None:
        async with self._database.transaction(tenant_id) as connection:
            await store.add_delivery(connection, tenant_id, delivery)
            if event_key and delivery.decision != _FAILED:
                await store.add_heard_event(connection, tenant_id, event_key, delivery.plugin)
