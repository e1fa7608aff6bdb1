"""A receiver of webhooks on loopback, and calls of WebhookService."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from spawnmesh.hook.v1 import observed_pb2, webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh_runtime.impersonation import use_token
from standardwebhooks import Webhook

from tests.support.hook.fixtures import Tenant

PENDING = webhook_pb2.WEBHOOK_DELIVERY_STATE_PENDING
DELIVERED = webhook_pb2.WEBHOOK_DELIVERY_STATE_DELIVERED
GIVEN_UP = webhook_pb2.WEBHOOK_DELIVERY_STATE_FAILED

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
        return [
            signer.verify(body, headers) for body, headers in zip(self.bodies, self.headers, strict=True)
        ]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers in self.headers]

    @property
    def types(self) -> list[str]:
        return [json.loads(body)["type"] for body in self.bodies]


async def call_webhooks(tenant: Tenant, rpc: str, request: Any) -> Any:
    """Call WebhookService as a client of the tenant, which is created if need be."""
    if not tenant.is_ready:
        await tenant.prepare(1)
    peer = tenant._session
    with use_token(tenant._clients.client_token(tenant.tenant_id, "tester", 60)):
        return await peer.unary(getattr(WebhookServiceStub(peer.channel), rpc), request, timeout_seconds=60.0)


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
