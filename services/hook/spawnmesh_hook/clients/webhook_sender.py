"""Sends messages to webhooks, each in one signed HTTPS request."""

import asyncio
import ssl
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

from spawnmesh_core.clock import monotonic_seconds, utc_now

from spawnmesh_hook.clients.dns_resolver import DnsLookupFailed
from spawnmesh_hook.clients.endpoint_guard import EndpointGuard
from spawnmesh_hook.clients.https_post import AnswerTooLarge, NoAnswer, PostAnswer, PostedBody, post
from spawnmesh_hook.clients.webhook_secrets import WebhookSecrets
from spawnmesh_hook.domain.endpoints import parse_webhook_url
from spawnmesh_hook.domain.errors import EndpointNotAllowed
from spawnmesh_hook.domain.webhooks import Webhook, WebhookAttempt, WebhookMessage

_MAX_ANSWER_BYTES = 64 * 1024  # It is not read, but it arrives.


@dataclass(frozen=True, slots=True)
class WebhookSender:
    """Opens a connection for each message, to an address that is checked for it."""

    guard: EndpointGuard
    tls: ssl.SSLContext
    secrets: WebhookSecrets

    async def send(self, tenant_id: str, webhook: Webhook, message: WebhookMessage) -> WebhookAttempt:
        """Send the message once, within the time-out of the webhook, and return the attempt.

        Never raise for a failure of the webhook: it is the `error` of the attempt, and holds
        nothing of the answer.
        """
        start_time, started = utc_now(), monotonic_seconds()
        answer, error = None, ""
        try:
            async with asyncio.timeout(webhook.timeout.total_seconds()):
                answer = await self._post(tenant_id, webhook, message)
        except TimeoutError:
            error = f"no answer within {webhook.timeout.total_seconds():.3g} s"
        except NoAnswer:
            error = "no connection, or it ended before the answer"
        except AnswerTooLarge:
            error = f"the answer has more than {_MAX_ANSWER_BYTES} bytes"
        except DnsLookupFailed as failure:
            error = f"the DNS lookup of its name failed: {failure}"
        except EndpointNotAllowed:
            error = "the operator does not allow its address any more"
        if answer is not None and not _is_received(answer):
            error = f"HTTP status {answer.status}"
        return WebhookAttempt(
            start_time=start_time,
            latency=timedelta(seconds=monotonic_seconds() - started),
            status_code=answer.status if answer else 0,
            error=error,
            retry_after=answer.retry_after if answer else None,
        )

    async def _post(self, tenant_id: str, webhook: Webhook, message: WebhookMessage) -> PostAnswer:
        endpoint = parse_webhook_url(webhook.url)
        addresses = await self.guard.addresses_of(endpoint, tenant_id)
        if not addresses:
            raise DnsLookupFailed("its name has no address")
        secrets = self.secrets.of_webhook(tenant_id, webhook, utc_now())
        posted = PostedBody(message.event_id, secrets, message.body.encode())
        return await post(endpoint, addresses, self.tls, posted, max_answer_bytes=_MAX_ANSWER_BYTES)


def _is_received(answer: PostAnswer) -> bool:
    return HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
