"""The delivery of messages to webhooks: the handler of the job that each webhook has.

One worker at a time has the job of a webhook, and sends what is due. So a webhook that is slow, or
fails, takes one place of the worker, however many messages wait for it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spawnmesh_core.cancellation import run_all
from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind, NewJob
from spawnmesh_postgres.jobs.store import enqueue
from spawnmesh_runtime.telemetry import traced

from spawnmesh_hook.clients.webhook_sender import WebhookSender
from spawnmesh_hook.domain.webhooks import (
    CONCURRENT_REQUESTS,
    LONGEST_RETRY,
    DeliveryState,
    Webhook,
    WebhookAttempt,
    WebhookDelivery,
    begin_of_day,
    expired_before,
    pause_after,
    pause_reason,
    retry_pause,
)
from spawnmesh_hook.metrics import WebhookMetrics
from spawnmesh_hook.store import webhook_deliveries, webhooks
from spawnmesh_hook.store.webhook_deliveries import DELIVER_WEBHOOK

# The pauses of messages are rules of the domain. This is for a database that does not answer.
_RETRY = BackoffPolicy(first_pause=timedelta(seconds=2), longest_pause=timedelta(minutes=5))
_BATCH = 16
_BUSY_SECONDS = 20.0  # After it, other webhooks have their turn.
_TIMEOUT = timedelta(seconds=75)  # The longest time-out of a request is half a minute.
_EXPIRED = 1_000
# A message that is stored while the job ends may not be seen by it.
_LONGEST_WAIT = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class WebhookDeliverer:
    """Sends each message to its webhook at least once, or gives it up after a day."""

    database: Database
    sender: WebhookSender
    metrics: WebhookMetrics

    def kind(self, concurrency: int) -> JobKind:
        """Return the kind of the jobs, of which `concurrency` run at the same time."""
        return JobKind(
            DELIVER_WEBHOOK, self.deliver, concurrency, _RETRY, timeout=_TIMEOUT, at_end=self.at_end
        )

    async def deliver(self, job: ClaimedJob) -> Again | None:
        """Send what is due to the webhook, and return when to look again; None if nothing waits.

        A webhook that fails is sent one message at a time, after pauses that grow. A crash sends
        messages again whose attempts were not recorded.
        """
        end = monotonic_seconds() + _BUSY_SECONDS
        while True:
            async with self.database.pipelined(job.tenant_id) as connection:
                webhook = await webhooks.find_webhook_by_id(connection, job.tenant_id, job.key)
                due = await webhook_deliveries.list_due_messages(connection, job.tenant_id, job.key, _BATCH)
                wait = await webhook_deliveries.time_to_next(connection, job.tenant_id, job.key)
            if webhook is None or webhook.paused or wait is None:
                return None  # `at_end` looks once more.
            if webhook.retry_time is not None and (left := webhook.retry_time - utc_now()) > timedelta(0):
                return Again(min(left, _LONGEST_WAIT), reason="the webhook fails")
            if not due:
                return Again(min(wait, _LONGEST_WAIT))
            await self._send_all(job.tenant_id, webhook, due, end)
            if monotonic_seconds() > end:
                return Again()

    async def at_end(self, connection: Connection, job: ClaimedJob, is_dead: bool) -> None:
        """Enqueue the job anew for messages that were stored after it had looked.

        A call that stores a message locks the job, so the message is seen here, or has another job.
        """
        webhook = await webhooks.find_webhook_by_id(connection, job.tenant_id, job.key)
        wait = await webhook_deliveries.time_to_next(connection, job.tenant_id, job.key)
        if webhook is not None and not webhook.paused and wait is not None and not is_dead:
            await enqueue(connection, job.tenant_id, NewJob(DELIVER_WEBHOOK, job.key, due_in=wait))

    async def _send_all(
        self, tenant_id: str, webhook: Webhook, due: Sequence[WebhookDelivery], end: float
    ) -> None:
        """Send messages, a few at the same time; none more after the first failure, or the end."""
        is_failing = webhook.failing_since is not None
        left = list(reversed(due[:1] if is_failing else due))
        attempts: list[WebhookAttempt] = []

        async def send_in_turn() -> None:
            while left:
                delivery = left.pop()
                attempt = await self._send(tenant_id, webhook, delivery)
                attempts.append(attempt)
                if attempt.error or monotonic_seconds() > end:
                    left.clear()
                await self._record(tenant_id, webhook, delivery, attempt)

        await run_all(*(send_in_turn() for _ in range(min(CONCURRENT_REQUESTS, len(left)))))
        if is_failing and attempts[0].error:
            await self._expire(tenant_id, webhook)

    async def _send(self, tenant_id: str, webhook: Webhook, delivery: WebhookDelivery) -> WebhookAttempt:
        event_type = delivery.message.event_type
        async with traced("hook.send_webhook", spawnmesh__hook__event_type=event_type.value) as span:
            attempt = await self.sender.send(tenant_id, webhook, delivery.message)
            span.set_attribute("http.response.status_code", attempt.status_code)
        self.metrics.record(event_type, attempt)
        return attempt

    async def _record(
        self, tenant_id: str, webhook: Webhook, delivery: WebhookDelivery, attempt: WebhookAttempt
    ) -> None:
        """Record the attempt, and when the message and the webhook are to be tried again."""
        state, pause = DeliveryState.DELIVERED, None
        async with self.database.pipelined(tenant_id) as connection:
            # The webhook is locked before its messages, as everywhere.
            if attempt.error:
                # It may have been resumed since it was read, and the day begun anew.
                current = await webhooks.lock_webhook_by_id(connection, tenant_id, webhook.webhook_id)
                count, begin = delivery.round_attempt_count + 1, begin_of_day(current or webhook, delivery)
                pause = pause_after(count, attempt, begin, random.random())  # noqa: S311
                state = DeliveryState.FAILED if pause is None else DeliveryState.PENDING
                asked = min(attempt.retry_after or timedelta(0), LONGEST_RETRY)
                retry_time = utc_now() + max(retry_pause(webhook.failure_count + 1), asked)
                reason = pause_reason(webhook, attempt)
                await webhooks.record_failure(connection, tenant_id, webhook, attempt, retry_time, reason)
            else:
                await webhooks.record_success(connection, tenant_id, webhook.webhook_id, attempt.start_time)
            await webhook_deliveries.record_attempt(
                connection,
                tenant_id,
                webhook.webhook_id,
                delivery,
                attempt,
                state,
                None if pause is None else utc_now() + pause,
            )
        if state is DeliveryState.FAILED:
            self._log_given_up(tenant_id, webhook, 1)

    async def _expire(self, tenant_id: str, webhook: Webhook) -> None:
        """Give up messages that have waited for a day behind those that failed."""
        before = expired_before(utc_now())
        async with self.database.pipelined(tenant_id) as connection:
            current = await webhooks.lock_webhook_by_id(connection, tenant_id, webhook.webhook_id)
            if current is None or (current.resume_time is not None and current.resume_time >= before):
                return
            count = await webhook_deliveries.expire_messages(
                connection, tenant_id, webhook.webhook_id, before, _EXPIRED
            )
        if count:
            self._log_given_up(tenant_id, webhook, count)

    def _log_given_up(self, tenant_id: str, webhook: Webhook, count: int) -> None:
        structlog.get_logger().warning(
            "webhook_messages_given_up", tenant=tenant_id, webhook=webhook.name, count=count
        )
