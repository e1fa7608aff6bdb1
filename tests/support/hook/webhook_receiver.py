"""A receiver of webhooks on loopback, and calls of WebhookService."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import observed_pb2, webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_runtime.impersonation import use_token
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.hook.fixtures import Tenant

PENDING = webhook_pb2.WEBHOOK_DELIVERY_STATE_PENDING
DELIVERED = webhook_pb2.WEBHOOK_DELIVERY_STATE_DELIVERED
GIVEN_UP = webhook_pb2.WEBHOOK_DELIVERY_STATE_FAILED

RUN_ENDED = webhook_pb2.WEBHOOK_EVENT_TYPE_RUN_ENDED
SESSION_ENDED = webhook_pb2.WEBHOOK_EVENT_TYPE_SESSION_ENDED
NO_RECEIVER = "https://127.0.0.1:1/hooks"

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]
Execute = Callable[..., Awaitable[list[Any]]]
"""Runs a statement in the scope of the test's tenant and returns its rows."""


@dataclass
class WebhookReceiver:
    """Answers with the next of `statuses`, and with 204 without one, and keeps what it was sent."""

    statuses: list[int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    respond: Respond | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.respond is not None:
            return await self.respond(request)
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    def messages(self, secret: str) -> list[Any]:
        """Return the messages, each of which the secret has signed."""
        signer = Webhook(secret)
        return [signer.verify(body, headers) for body, headers in zip(self.bodies, self.headers, strict=True)]

    def is_signed(self, secret: str, number: int = -1) -> bool:
        """Return whether the secret has signed the message, by default the last one."""
        try:
            Webhook(secret).verify(self.bodies[number], self.headers[number])
        except WebhookVerificationError:
            return False
        return True

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers in self.headers]

    @property
    def types(self) -> list[str]:
        return [json.loads(body)["type"] for body in self.bodies]


class HeldAnswers:
    """Holds the answers of a receiver until they are released, and then answers with the status."""

    def __init__(self, receiver: WebhookReceiver, status: int = 204) -> None:
        self.status = status
        self.waiting = 0
        self.most = 0
        """The most requests that waited at the same time."""
        self._released = asyncio.Semaphore(0)
        receiver.respond = self._respond

    def release(self, count: int = 1) -> None:
        """Let so many of the requests be answered that wait, or that come."""
        for _ in range(count):
            self._released.release()

    async def _respond(self, _request: web.Request) -> web.StreamResponse:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self._released.acquire()
        finally:
            self.waiting -= 1
        return web.Response(status=self.status)


async def call_webhooks(tenant: Tenant, rpc: str, request: Any, timeout_seconds: float = 60.0) -> Any:
    """Call WebhookService as a client of the tenant, which is created if need be."""
    if not tenant.is_ready:
        await tenant.prepare(1)
    peer = tenant._session
    with use_token(tenant._clients.client_token(tenant.tenant_id, "tester", 60)):
        stub = WebhookServiceStub(peer.channel)
        return await peer.unary(getattr(stub, rpc), request, timeout_seconds=timeout_seconds)


Serve = Callable[[WebhookReceiver], Awaitable[str]]


async def put_webhook(
    tenant: Tenant,
    url: str,
    *event_types: "webhook_pb2.WebhookEventType.ValueType",
    name: str = "w",
    **more: Any,
) -> pb.UpdateWebhookResponse:
    webhook = webhook_pb2.Webhook(name=name, url=url, event_types=event_types, **more)
    request = pb.UpdateWebhookRequest(webhook=webhook, allow_missing=True, allow_unreachable=True)
    answer: pb.UpdateWebhookResponse = await call_webhooks(tenant, "UpdateWebhook", request)
    return answer


async def update(
    tenant: Tenant,
    *paths: str,
    allow_missing: bool = False,
    allow_unreachable: bool = True,
    **fields: Any,
) -> pb.UpdateWebhookResponse:
    webhook = webhook_pb2.Webhook(**{"name": "w", **fields})
    request = pb.UpdateWebhookRequest(
        webhook=webhook, allow_missing=allow_missing, allow_unreachable=allow_unreachable
    )
    request.update_mask.paths.extend(paths)
    answer: pb.UpdateWebhookResponse = await call_webhooks(tenant, "UpdateWebhook", request)
    return answer


async def log_of(tenant: Tenant, name: str = "w", **conditions: Any) -> list[webhook_pb2.WebhookDelivery]:
    """Return the deliveries, newest event first."""
    request = pb.ListWebhookDeliveriesRequest(name=name, **conditions)
    return list((await call_webhooks(tenant, "ListWebhookDeliveries", request)).deliveries)


def run_ended(number: int = 1, *, session_id: str = "ses_1") -> observed_pb2.ObservedEvent:
    return observed_pb2.ObservedEvent(
        event_key=f"agent_end:v1:{session_id}:run_{number}",
        session_id=session_id,
        run_id=f"run_{number}",
        agent_end=observed_pb2.AgentEndEvent(outcome=END_OUTCOME_SUCCEEDED),
    )


def session_ended(session_id: str = "ses_1") -> observed_pb2.ObservedEvent:
    return observed_pb2.ObservedEvent(
        event_key=f"session_end:v1:{session_id}",
        session_id=session_id,
        session_end=observed_pb2.SessionEndEvent(),
    )


async def names_of(tenant: Tenant) -> list[str]:
    listed = await call_webhooks(tenant, "ListWebhooks", pb.ListWebhooksRequest())
    return [one.name for one in listed.webhooks]


async def webhook_of(tenant: Tenant, name: str = "w") -> webhook_pb2.Webhook:
    answer: pb.GetWebhookResponse = await call_webhooks(tenant, "GetWebhook", pb.GetWebhookRequest(name=name))
    return answer.webhook


async def pause(tenant: Tenant, name: str = "w") -> webhook_pb2.Webhook:
    answer: pb.PauseWebhookResponse = await call_webhooks(
        tenant, "PauseWebhook", pb.PauseWebhookRequest(name=name)
    )
    return answer.webhook


async def resume(tenant: Tenant, name: str = "w") -> webhook_pb2.Webhook:
    answer: pb.ResumeWebhookResponse = await call_webhooks(
        tenant, "ResumeWebhook", pb.ResumeWebhookRequest(name=name)
    )
    return answer.webhook


async def delete(tenant: Tenant, name: str = "w", etag: str = "") -> None:
    await call_webhooks(tenant, "DeleteWebhook", pb.DeleteWebhookRequest(name=name, etag=etag))


async def rotate(
    tenant: Tenant, request_id: str, *, keep_seconds: int | None = None, name: str = "w"
) -> pb.RotateWebhookSecretResponse:
    keep = None if keep_seconds is None else Duration(seconds=keep_seconds)
    request = pb.RotateWebhookSecretRequest(name=name, request_id=request_id, keep_previous=keep)
    answer: pb.RotateWebhookSecretResponse = await call_webhooks(tenant, "RotateWebhookSecret", request)
    return answer


async def send_test(tenant: Tenant, name: str = "w") -> webhook_pb2.WebhookDelivery:
    answer: pb.TestWebhookResponse = await call_webhooks(
        tenant, "TestWebhook", pb.TestWebhookRequest(name=name)
    )
    return answer.delivery


async def replay(
    tenant: Tenant, *event_ids: str, name: str = "w", failed_since: Timestamp | None = None
) -> tuple[int, bool]:
    """Replay the messages, or those that were given up. Return the answer's count and `is_partial`."""
    request = pb.ReplayWebhookDeliveriesRequest(name=name)
    if failed_since is None:
        request.events.event_ids.extend(event_ids)
    else:
        request.failed_since_time.CopyFrom(failed_since)
    answer = await call_webhooks(tenant, "ReplayWebhookDeliveries", request)
    return answer.replayed_count, answer.is_partial


async def run_again(worker: JobWorker, execute: Execute) -> int:
    """Run the jobs as if every pause had passed, and return the number of their attempts.

    The order of the messages stays as it is.
    """
    await execute("update webhooks set retry_time = retry_time - interval '1 hour'")
    await execute("update webhook_deliveries set attempt_time = attempt_time - interval '1 day'")
    await execute("update jobs set due_time = now()")
    return await worker.run_due()


async def rest_of_pause(execute: Execute) -> float:
    """Return the seconds until the one message that is pending is due again."""
    rest = "extract(epoch from attempt_time - now())::float8"
    [(seconds,)] = await execute(f"select {rest} from webhook_deliveries where state = 'PENDING'")
    return float(seconds)


async def rest_of_failure(execute: Execute) -> float:
    """Return the seconds until the one webhook that fails is sent a message again."""
    [(seconds,)] = await execute("select extract(epoch from retry_time - now())::float8 from webhooks")
    return float(seconds)


async def end_the_day(execute: Execute) -> None:
    """Set the begin of the day of every message back, also that which a resume began."""
    await execute("update webhooks set resume_time = resume_time - interval '1 day'")
    await execute("update webhook_deliveries set queue_time = queue_time - interval '1 day'")
