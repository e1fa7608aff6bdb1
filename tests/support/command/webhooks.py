"""Webhooks of a hook service in the test's own process."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh.hook.v1 import webhook_service_pb2 as rpc
from spawnmesh.hook.v1.webhook_service_pb2_grpc import (
    WebhookServiceServicer,
    add_WebhookServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import (
    FakeMesh,
    FakeSessions,
    FakeTranscript,
    served,
    write_mesh_file,
)
from tests.support.command.tenants import FakeTenants

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EVENT_ID = "evt_00000000000000000000000000"


@dataclass
class RecordedWebhooks(WebhookServiceServicer):
    """Record the requests, and answer them with the webhook and pages of the deliveries.

    `refusal` answers all calls, and NOT_FOUND those of GetWebhook if it `is_missing`. `replays` are
    the counts of the next replays: more follow while there is another.
    """

    webhook: pb.Webhook = field(default_factory=lambda: webhook_named("a"))
    pages: list[list[pb.WebhookDelivery]] = field(default_factory=lambda: [[]])
    replays: list[int] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    refusal: MeshError | None = None
    is_missing: bool = False

    def add_to(self, server: MeshServer) -> None:
        """Register the RPCs for clients."""
        add_WebhookServiceServicer_to_server(self, server)

    async def UpdateWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.UpdateWebhookResponse(webhook=self.webhook, secret=SECRET)

    async def GetWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        if self.is_missing:
            raise not_found("webhook", request.name)
        return rpc.GetWebhookResponse(webhook=self.webhook)

    async def ListWebhooks(self, request: Any, context: Any) -> Any:
        self._note(request)
        if request.page_token:
            return rpc.ListWebhooksResponse(webhooks=[webhook_named("b")])
        return rpc.ListWebhooksResponse(webhooks=[self.webhook], next_page_token="1")

    async def PauseWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.PauseWebhookResponse(webhook=self.webhook)

    async def ResumeWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.ResumeWebhookResponse(webhook=self.webhook)

    async def DeleteWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.DeleteWebhookResponse()

    async def RotateWebhookSecret(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.RotateWebhookSecretResponse(webhook=self.webhook, secret=SECRET)

    async def TestWebhook(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.TestWebhookResponse(delivery=self.pages[0][0])

    async def ListWebhookDeliveries(self, request: Any, context: Any) -> Any:
        self._note(request)
        number = int(request.page_token or 0)
        more = str(number + 1) if number + 1 < len(self.pages) else ""
        return rpc.ListWebhookDeliveriesResponse(deliveries=self.pages[number], next_page_token=more)

    async def ReplayWebhookDeliveries(self, request: Any, context: Any) -> Any:
        self._note(request)
        return rpc.ReplayWebhookDeliveriesResponse(
            replayed_count=self.replays.pop(0), is_partial=bool(self.replays)
        )

    def _note(self, request: Any) -> None:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal


def webhook_named(name: str) -> pb.Webhook:
    """Return an active webhook for two types of events."""
    webhook = pb.Webhook(
        name=name,
        url="https://example.com/hooks",
        event_types=[pb.WEBHOOK_EVENT_TYPE_RUN_ENDED, pb.WEBHOOK_EVENT_TYPE_APPROVAL_REQUESTED],
        etag="e1",
    )
    webhook.timeout.seconds = 15
    webhook.create_time.FromSeconds(1)
    return webhook


def delivery_in(
    state: "pb.WebhookDeliveryState.ValueType", *attempts: tuple[int, str], **fields: Any
) -> pb.WebhookDelivery:
    """Return the delivery of a run's end with attempts of these statuses and errors."""
    delivery = pb.WebhookDelivery(
        **{"event_id": EVENT_ID, "event_type": pb.WEBHOOK_EVENT_TYPE_RUN_ENDED} | fields,
        state=state,
        attempt_count=len(attempts),
        session_id="ses_00000000000000000000000000",
        run_id="run_00000000000000000000000000",
        body_json='{"type":"run.ended"}',
    )
    delivery.event_time.FromSeconds(1)
    delivery.queue_time.FromSeconds(2)
    for status, error in attempts:
        attempt = delivery.attempts.add(status_code=status, error=error)
        attempt.start_time.FromSeconds(3)
        attempt.latency.FromMilliseconds(42)
    return delivery


@pytest.fixture
def webhooks() -> RecordedWebhooks:
    return RecordedWebhooks()


@pytest.fixture
async def webhook_mesh(keys: Path, tmp_path: Path, webhooks: RecordedWebhooks) -> AsyncIterator[FakeMesh]:
    """Return a hook service with the webhooks that `mesh.json` names."""
    async with served("hook", keys, webhooks.add_to) as target:
        targets = {"session": target, "hook": target}
        write_mesh_file(tmp_path, keys, targets)
        yield FakeMesh(tmp_path, FakeSessions(), FakeTenants(), FakeTranscript(), targets)
