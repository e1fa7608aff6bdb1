"""Calls a plugin within its timeout, and logs the call."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_calls.connection import PeerUnresponsive
from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.cpu_workers import CpuWorkers
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.telemetry import traced

from spawnmesh_hook.clients.dns_resolver import DnsLookupFailed
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.clients.handler_answer import Answer, AnswerBytes, read_answer
from spawnmesh_hook.clients.handler_request import HandlerRequest, Request
from spawnmesh_hook.clients.plugin_channels import PluginChannelPool
from spawnmesh_hook.clients.webhook_plugins import WebhookPluginClient
from spawnmesh_hook.domain import call_failures, circuit_breaker
from spawnmesh_hook.domain.call_failures import MAX_ANSWER_BYTES, CallFailure
from spawnmesh_hook.domain.deliveries import Delivery
from spawnmesh_hook.domain.endpoints import Address, Endpoint, parse_endpoint
from spawnmesh_hook.domain.errors import EndpointNotAllowed
from spawnmesh_hook.domain.plugins import FailurePolicy, Plugin, registration_key
from spawnmesh_hook.metrics import DeliveryMetrics
from spawnmesh_hook.operations.bulkheads import Bulkheads
from spawnmesh_hook.operations.circuit_breakers import CircuitBreakers
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.store.deliveries import insert_delivery

# The share of its own timeout that a plugin must have had for a timeout to count against it. With
# less time, the caller or the calls before it are the cause.
_FAIR_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class _Invocation:
    tenant_id: str
    plugin: Plugin
    delivery_id: str
    attempt: int


class PluginInvoker:
    """Calls plugins on behalf of the tenant, over gRPC or as webhooks.

    Each call leaves a row in the delivery log, which is written before the answer is used. A
    failure is returned as a value. Its meaning is up to the caller.
    """

    def __init__(
        self,
        database: Database,
        guard: EndpointGuard,
        channels: PluginChannelPool,
        webhooks: WebhookPluginClient,
        workers: CpuWorkers,
        metrics: DeliveryMetrics,
    ) -> None:
        self._database = database
        self._guard = guard
        self._channels = channels
        self._webhooks = webhooks
        self._workers = workers
        self._metrics = metrics
        self._breakers = CircuitBreakers()
        self._bulkheads = Bulkheads()

    async def invoke(
        self,
        tenant_id: str,
        plugin: Plugin,
        request: HandlerRequest[Request, Answer],
        budget: TimeBudget,
        *,
        attempt: int = 1,
    ) -> Answer | CallFailure:
        """Return a valid answer, or why there is none.

        If the circuit breaker is open, only the row of the log is written. A plugin that was found
        silent is not called either, until it answers a health check.
        """
        invocation = _Invocation(tenant_id, plugin, new_id(IdKind.DELIVERY), attempt)
        if not self._breakers.admit(registration_key(tenant_id, plugin)):
            await self._log(_delivery(invocation, request, call_failures.CIRCUIT_OPEN, 0.0), tenant_id)
            return call_failures.CIRCUIT_OPEN
        answer: Answer | CallFailure = call_failures.CANCELLED
        try:
            answer, _ = await self._call_and_log(invocation, request, budget)
        finally:
            self._record_result(tenant_id, plugin, answer)
        return answer

    async def invoke_for_test(
        self, tenant_id: str, plugin: Plugin, request: HandlerRequest[Request, Answer], budget: TimeBudget
    ) -> Delivery:
        """Call the plugin without its circuit breaker, and return the row of the log.

        A plugin that was found silent is not called: its health is being checked.
        """
        invocation = _Invocation(tenant_id, plugin, new_id(IdKind.DELIVERY), 1)
        _, delivery = await self._call_and_log(invocation, request, budget)
        return delivery

    def _record_result(self, tenant_id: str, plugin: Plugin, answer: object) -> None:
        key = registration_key(tenant_id, plugin)
        if not isinstance(answer, CallFailure):
            self._breakers.call_succeeded(key)
        elif answer.counts_against_plugin:
            self._breakers.call_failed(key, _longest_open_seconds(plugin))
        else:
            self._breakers.call_cancelled(key)

    async def _call_and_log(
        self, invocation: _Invocation, request: HandlerRequest[Request, Answer], budget: TimeBudget
    ) -> tuple[Answer | CallFailure, Delivery]:
        started = monotonic_seconds()
        answer: Answer | CallFailure = call_failures.CANCELLED
        async with traced("hook.call_plugin", spawnmesh__hook__plugin=invocation.plugin.name) as span:
            try:
                answer = await self._call_in_time(invocation, request, budget)
            finally:
                delivery = _delivery(invocation, request, answer, monotonic_seconds() - started)
                span.set_attribute("spawnmesh.hook.decision", delivery.decision)
                await self._log(delivery, invocation.tenant_id)
        return answer, delivery

    async def _call_in_time(
        self, invocation: _Invocation, request: HandlerRequest[Request, Answer], budget: TimeBudget
    ) -> Answer | CallFailure:
        """Return the answer, or why there is none within the plugin's timeout and the budget.

        The wait for a slot and the DNS lookup count as part of that time. To read the answer may
        take what is left of the budget. Raises MeshError if the answer came and this process could
        not read it: a gate is not to be passed for that.
        """
        plugin = invocation.plugin
        timeout_seconds = plugin.timeout.total_seconds()
        seconds = min(timeout_seconds, budget.left())
        if seconds <= 0:
            return call_failures.NO_TIME_LEFT
        ends_at = monotonic_seconds() + seconds
        on_timeout: CallFailure | None = call_failures.BULKHEAD_FULL
        try:
            async with (
                asyncio.timeout(seconds) as limit,
                self._bulkheads.slot(invocation.tenant_id, plugin),
            ):
                on_timeout = call_failures.dns_lookup_failed("no time was left for it")
                endpoint = parse_endpoint(plugin.endpoint)
                addresses = await self._guard.addresses_of(
                    endpoint, invocation.tenant_id, trusted=plugin.bundled
                )
                if not addresses:
                    return call_failures.NO_ADDRESS
                left = max(0.0, ends_at - monotonic_seconds())
                is_fair = left >= timeout_seconds * _FAIR_SHARE
                on_timeout = (
                    call_failures.timed_out(seconds) if is_fair else call_failures.deadline_too_short(left)
                )
                sent = await self._send(invocation, endpoint, addresses, request, left)
                if isinstance(sent, CallFailure):
                    return sent
                on_timeout = None
                limit.reschedule(asyncio.get_running_loop().time() + budget.left())
                return await self._read(invocation.tenant_id, request, sent)
        except TimeoutError:
            if on_timeout is None:
                raise _not_read_in_time() from None
            return on_timeout
        except DnsLookupFailed as error:
            return call_failures.dns_lookup_failed(str(error))
        except EndpointNotAllowed as error:
            return call_failures.rejected(error)

    async def _read(
        self, tenant_id: str, request: HandlerRequest[Request, Answer], sent: AnswerBytes
    ) -> Answer | CallFailure:
        """Read the answer. A worker does it if the answer or the request, on which can depend what
        is permitted, is large. Raises MeshError if no worker is free.
        """
        if len(sent.data) > MAX_ANSWER_BYTES:
            return call_failures.ANSWER_TOO_LARGE
        size_bytes = request.request.ByteSize() + len(sent.data)
        try:
            return await self._workers.run(
                tenant_id, size_bytes, read_answer, request.answer_type, sent, request.check_permitted
            )
        except MeshError as error:
            if error.reason is Reason.PROCESSING_TIME_EXCEEDED:
                return call_failures.ANSWER_TOO_COMPLEX
            raise

    async def _send(
        self,
        invocation: _Invocation,
        endpoint: Endpoint,
        addresses: tuple[Address, ...],
        request: HandlerRequest[Request, Answer],
        seconds: float,
    ) -> AnswerBytes | CallFailure:
        """Return the answer, or why there is none. Raises TimeoutError."""
        if endpoint.is_webhook:
            return await self._webhooks.call(
                invocation.tenant_id, invocation.plugin, addresses, invocation.delivery_id, request
            )
        async with self._channels.use(endpoint, addresses) as peer:
            if peer.probe is not None and peer.probe.is_away:
                return call_failures.SILENT
            with impersonate(invocation.tenant_id, plugin=invocation.plugin.endpoint):
                try:
                    answer = await peer.unary(
                        request.method(peer.channel), request.request, timeout_seconds=seconds
                    )
                except PeerUnresponsive:
                    return call_failures.STOPPED_ANSWERING
                except MeshError as error:
                    if error.reason is Reason.DEADLINE_EXCEEDED:
                        raise TimeoutError from None
                    return call_failures.rejected(error)
        return AnswerBytes(answer, is_json=False)

    async def _log(self, delivery: Delivery, tenant_id: str) -> None:
        self._metrics.record(delivery.hook, delivery.decision, delivery.latency)
        async with self._database.adding(tenant_id) as connection:
            await insert_delivery(connection, tenant_id, delivery)


def _longest_open_seconds(plugin: Plugin) -> float:
    """Return how long calls are skipped at most. Work waits for a plugin that is CLOSED."""
    if plugin.failure_policy is FailurePolicy.CLOSED:
        return circuit_breaker.LONGEST_OPEN_SECONDS_OF_GATES
    return circuit_breaker.LONGEST_OPEN_SECONDS


def _not_read_in_time() -> MeshError:
    return MeshError(
        Reason.POOL_EXHAUSTED,
        "the answer of a plugin could not be read in time; call again later",
        retry_after_seconds=1.0,
        facts={"pool": "cpu workers"},
    )


def _delivery(
    invocation: _Invocation,
    request: HandlerRequest[Request, Answer],
    answer: Answer | CallFailure,
    seconds: float,
) -> Delivery:
    return Delivery(
        delivery_id=invocation.delivery_id,
        plugin=invocation.plugin.name,
        hook=request.hook,
        session_id=request.session_id,
        run_id=request.run_id,
        start_time=utc_now() - timedelta(seconds=seconds),
        latency=timedelta(seconds=seconds),
        decision=answer.decision if isinstance(answer, CallFailure) else request.decision_of(answer),
        error=answer.error if isinstance(answer, CallFailure) else "",
        attempt=invocation.attempt,
    )
