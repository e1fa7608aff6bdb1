"""The delivery of messages to webhooks: the handler of its background jobs."""

import random
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind
from spawnmesh_runtime.telemetry import traced

from spawnmesh_hook.clients.webhook_sender import WebhookSender
from spawnmesh_hook.domain import circuit_breaker
from spawnmesh_hook.domain.webhooks import (
    DeliveryState,
    Webhook,
    WebhookAttempt,
    WebhookDelivery,
    pause_after,
    pause_reason,
)
from spawnmesh_hook.metrics import WebhookMetrics
from spawnmesh_hook.operations.circuit_breakers import CircuitBreakers
from spawnmesh_hook.store import webhook_deliveries, webhooks
from spawnmesh_hook.store.webhook_deliveries import DELIVER_WEBHOOK

# The pauses of messages are rules of the domain. This is for a database that does not answer.
_RETRY = BackoffPolicy(first_pause=timedelta(seconds=2), longest_pause=timedelta(minutes=5))
_TIMEOUT = timedelta(seconds=60)  # The longest time-out of a webhook is half a minute.
_BREAKER_PAUSE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class WebhookDeliverer:
    """Sends each message to its webhook at least once, or gives it up after a day."""

    database: Database
    sender: WebhookSender
    breakers: CircuitBreakers
    metrics: WebhookMetrics

    def kind(self, concurrency: int) -> JobKind:
        """Return the kind of the jobs, of which `concurrency` run at the same time."""
        return JobKind(DELIVER_WEBHOOK, self.deliver, concurrency, _RETRY, timeout=_TIMEOUT)

    async def deliver(self, job: ClaimedJob) -> Again | None:
        """Send the message once if it is still to be sent, and record the attempt.

        A crash in between sends it again. Messages to a webhook that has just failed several times
        wait, which is no attempt.
        """
        tenant_id, webhook_id = job.tenant_id, job.arguments["webhook_id"]
        async with self.database.pipelined(tenant_id) as connection:
            webhook = await webhooks.find_webhook_by_id(connection, tenant_id, webhook_id)
            delivery = await webhook_deliveries.find_delivery(
                connection, tenant_id, webhook_id, job.arguments["event_id"]
            )
        if webhook is None or delivery is None or not _is_open(delivery, job):
            return None
        if webhook.paused:
            return await self._hold(job)
        key = (tenant_id, webhook.webhook_id, webhook.generation)
        if not self.breakers.admit(key):
            return Again(_BREAKER_PAUSE * (1 + random.random()), reason="the webhook fails")  # noqa: S311
        attempt = None
        try:
            attempt = await self._send(tenant_id, webhook, delivery)
        finally:
            if attempt is None:
                self.breakers.call_cancelled(key)
            elif attempt.error:
                self.breakers.call_failed(key, circuit_breaker.LONGEST_OPEN_SECONDS)
            else:
                self.breakers.call_succeeded(key)
        return await self._record(tenant_id, webhook, delivery, attempt)

    async def _send(self, tenant_id: str, webhook: Webhook, delivery: WebhookDelivery) -> WebhookAttempt:
        event_type = delivery.message.event_type
        async with traced("hook.send_webhook", spawnmesh__hook__event_type=event_type.value) as span:
            attempt = await self.sender.send(tenant_id, webhook, delivery.message)
            span.set_attribute("http.response.status_code", attempt.status_code)
        self.metrics.record(event_type, attempt)
        return attempt

    async def _record(
        self, tenant_id: str, webhook: Webhook, delivery: WebhookDelivery, attempt: WebhookAttempt
    ) -> Again | None:
        """Record the attempt, and return when the message is sent again, if it is."""
        pause = None
        state = DeliveryState.DELIVERED
        if attempt.error:
            pause = pause_after(delivery.round_attempt_count + 1, attempt, random.random())  # noqa: S311
            state = DeliveryState.FAILED if pause is None else DeliveryState.PENDING
        async with self.database.pipelined(tenant_id) as connection:
            # The webhook is locked before its messages, as everywhere.
            if attempt.error:
                reason = pause_reason(webhook, attempt)
                await webhooks.record_failure(connection, tenant_id, webhook, attempt, reason)
            else:
                await webhooks.record_success(connection, tenant_id, webhook.webhook_id, attempt.start_time)
            await webhook_deliveries.record_attempt(
                connection, tenant_id, webhook.webhook_id, delivery, attempt, state
            )
        if state is DeliveryState.FAILED:
            structlog.get_logger().warning(
                "webhook_message_given_up", tenant=tenant_id, webhook=webhook.name, error=attempt.error
            )
        return None if pause is None else Again(pause, reason=attempt.error)

    async def _hold(self, job: ClaimedJob) -> Again:
        """Keep the job until its webhook is resumed, or try again if it is by now."""
        async with self.database.transaction(job.tenant_id) as connection:
            await webhook_deliveries.hold_message(connection, job)
        return Again()  # Changes nothing if the job is held, which has ended the claim.


def _is_open(delivery: WebhookDelivery, job: ClaimedJob) -> bool:
    return delivery.state is DeliveryState.PENDING and delivery.round == job.arguments["round"]
