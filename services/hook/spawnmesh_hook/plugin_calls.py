"""Calls of plugins: each in its own time, each logged, a malformed answer being none."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.acting import acting_for
from spawnmesh_runtime.telemetry import traced

from spawnmesh_hook import answers, store
from spawnmesh_hook.answers import Failure
from spawnmesh_hook.apart import apart
from spawnmesh_hook.breakers import Breakers, CallSlots
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.delivery_metrics import DeliveryMetrics
from spawnmesh_hook.domain.endpoints import Address, Endpoint, parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin
from spawnmesh_hook.endpoint_guard import EndpointGuard
from spawnmesh_hook.lookups import NotLookedUp
from spawnmesh_hook.plugin_peers import PluginPeers
from spawnmesh_hook.questions import Answer, Question, Request
from spawnmesh_hook.webhooks import Webhooks

# Of its own time-out: with less, a time-out tells of who asked, or of those who were before it, and not of the plugin.
_FAIR_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Called:
    """What is known of a call before it is made."""

    tenant_id: str
    plugin: Plugin
    delivery_id: str
    attempt: int


class PluginCalls:
    """Calls plugins in the name of this service for the tenant.

    Every call leaves a row in the log, written when the call is over and before its answer is acted on. A failure is an answer here, and
    what it means is the caller's to judge.
    """

    def __init__(
        self,
        database: Database,
        guard: EndpointGuard,
        peers: PluginPeers,
        webhooks: Webhooks,
        breakers: Breakers,
        slots: CallSlots,
        metrics: DeliveryMetrics,
    ) -> None:
        self._database = database
        self._guard = guard
        self._peers = peers
        self._webhooks = webhooks
        self._breakers = breakers
        self._slots = slots
        self._metrics = metrics

    async def ask(
        self, tenant_id: str, plugin: Plugin, question: Question[Request, Answer], budget: Budget, *, attempt: int = 1
    ) -> Answer | Failure:
        """A valid answer, or why there is none. A plugin that its circuit breaker keeps from being called costs no more than a row."""
        called = Called(tenant_id, plugin, new_id(IdKind.DELIVERY), attempt)
        if not self._breakers.admit(tenant_id, plugin):
            await self._log(_delivery(called, question, answers.CUT_OFF, 0.0), tenant_id)
            return answers.CUT_OFF
        answer: Answer | Failure = answers.ABANDONED
        try:
            answer, _ = await self._make(called, question, budget)
        finally:
            self._learn(tenant_id, plugin, answer)
        return answer

    async def try_out(
        self, tenant_id: str, plugin: Plugin, question: Question[Request, Answer], budget: Budget
    ) -> store.Delivery:
        """Calls whatever the circuit breaker says, and teaches it nothing; the row of the log."""
        called = Called(tenant_id, plugin, new_id(IdKind.DELIVERY), 1)
        _, delivery = await self._make(called, question, budget)
        return delivery

    def _learn(self, tenant_id: str, plugin: Plugin, answer: object) -> None:
        if not isinstance(answer, Failure):
            self._breakers.succeeded(tenant_id, plugin)
        elif answer.blamed:
            self._breakers.failed(tenant_id, plugin)
        else:
            self._breakers.given_up(tenant_id, plugin)

    async def _make(
        self, called: Called, question: Question[Request, Answer], budget: Budget
    ) -> tuple[Answer | Failure, store.Delivery]:
        started = monotonic_seconds()
        answer: Answer | Failure = answers.ABANDONED
        async with traced("hook.call_plugin", spawnmesh__hook__plugin=called.plugin.name) as span:
            try:
                answer = await self._answer(called, question, budget)
            finally:
                delivery = _delivery(called, question, answer, monotonic_seconds() - started)
                span.set_attribute("spawnmesh.hook.decision", delivery.decision)
                await self._log(delivery, called.tenant_id)
        return answer, delivery

    async def _answer(self, called: Called, question: Question[Request, Answer], budget: Budget) -> Answer | Failure:
        """What came of it in the plugin's own time, in which it also waits for a slot and is looked up."""
        plugin = called.plugin
        own_seconds = plugin.timeout.total_seconds()
        seconds = min(own_seconds, budget.left())
        if seconds <= 0:
            return answers.NEVER_ASKED
        ends_at = monotonic_seconds() + seconds
        too_late = answers.BUSY
        try:
            async with asyncio.timeout(seconds), self._slots.slot(called.tenant_id, plugin):
                too_late = answers.not_looked_up("no time was left for it")
                endpoint = parse_endpoint(plugin.endpoint)
                addresses = await self._guard.addresses_of(endpoint, called.tenant_id, trusted=plugin.bundled)
                if not addresses:
                    return answers.LED_NOWHERE
                left = max(0.0, ends_at - monotonic_seconds())
                is_fair = left >= own_seconds * _FAIR_SHARE
                too_late = answers.too_slow(seconds) if is_fair else answers.too_little_time(left)
                answer = await self._over_the_wire(called, endpoint, addresses, question, left)
        except TimeoutError:
            return too_late
        except NotLookedUp as error:
            return answers.not_looked_up(str(error))
        except MeshError as error:
            return too_late if error.reason is Reason.DEADLINE_EXCEEDED else answers.refused(error)
        if isinstance(answer, Failure):
            return answer
        size_bytes = question.request.ByteSize() + answer.ByteSize()
        return answers.malformed(answer) or await apart(size_bytes, question.forbidden, answer) or answer

    async def _over_the_wire(
        self,
        called: Called,
        endpoint: Endpoint,
        addresses: tuple[Address, ...],
        question: Question[Request, Answer],
        seconds: float,
    ) -> Answer | Failure:
        if endpoint.is_webhook:
            return await self._webhooks.call(called.tenant_id, called.plugin, addresses, called.delivery_id, question)
        async with self._peers.peer(endpoint, addresses) as peer:
            with acting_for(called.tenant_id, plugin=called.plugin.endpoint):
                # grpc gives None for bytes that are no such message, which its types do not tell.
                answer: Answer | None = await peer.unary(
                    question.method(peer.channel), question.request, timeout_seconds=seconds
                )
        return answers.UNREADABLE if answer is None else answer

    async def _log(self, delivery: store.Delivery, tenant_id: str) -> None:
        self._metrics.delivered(delivery.hook, delivery.decision, delivery.latency)
        async with self._database.transaction(tenant_id) as connection:
            await store.add_delivery(connection, tenant_id, delivery)


def _delivery(
    called: Called, question: Question[Request, Answer], answer: Answer | Failure, seconds: float
) -> store.Delivery:
    return store.Delivery(
        delivery_id=called.delivery_id,
        plugin=called.plugin.name,
        hook=question.hook,
        session_id=question.session_id,
        run_id=question.run_id,
        start_time=utc_now() - timedelta(seconds=seconds),
        latency=timedelta(seconds=seconds),
        decision=answer.decision if isinstance(answer, Failure) else question.decision_of(answer),
        error=answer.error if isinstance(answer, Failure) else "",
        attempt=called.attempt,
    )
