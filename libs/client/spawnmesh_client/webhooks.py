"""The webhooks of a tenant, which are sent its events, and `verify` for those who receive them."""

import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from types import EllipsisType
from typing import TYPE_CHECKING

from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh.hook.v1 import webhook_service_pb2 as rpc
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_core.webhook_signature import SignatureRefused

from spawnmesh_client.pages import paged
from spawnmesh_client.times import seconds_of, stamp_of
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import duration_of, number_of
from spawnmesh_client.webhook_messages import WebhookMessage, verify
from spawnmesh_client.webhook_views import (
    Webhook,
    WebhookDelivery,
    delivery_view,
    event_type_number,
    event_type_numbers,
    webhook_view,
)
from spawnmesh_client.wire import WireMesh

if TYPE_CHECKING:
    from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub

__all__ = ["SignatureRefused", "WebhookMessage", "Webhooks", "verify"]

_REACH_SECONDS = 60.0


class Webhooks:
    """`mesh.webhooks`.

    Types of events are texts such as `run.ended`. Times to wait are timedeltas or in seconds.
    """

    def __init__(self, wire: WireMesh) -> None:
        self._wire = wire

    async def put(
        self,
        name: str,
        *,
        url: str,
        event_types: Sequence[str] = (),
        timeout: timedelta | float | None = None,
        allow_unreachable: bool = False,
        etag: str = "",
    ) -> tuple[Webhook, str]:
        """Create a webhook, or replace all of the one with this name.

        Without `event_types`, it is sent all of them; those that a later version of the mesh adds,
        once it is put again. Return it and the secret that signs its messages. Raises ValueError
        for an unknown type; ENDPOINT_NOT_ALLOWED and ENDPOINT_NOT_REACHED; and with an etag,
        Conflict ETAG_DIFFERS if it was changed since, and NotFound.
        """
        webhook = _message(name, url, event_types, timeout, etag)
        return await self._update(webhook, [EVERY_FIELD], True, allow_unreachable)

    async def update(
        self,
        name: str,
        *,
        url: str | EllipsisType = ...,
        event_types: Sequence[str] | EllipsisType = ...,
        timeout: timedelta | float | EllipsisType | None = ...,
        allow_unreachable: bool = False,
        etag: str = "",
    ) -> tuple[Webhook, str]:
        """Change what is given of a webhook, and nothing else. Return what `put` returns.

        `event_types=[]` stands for all types, and `timeout=None` for the default. Raises NotFound,
        ValueError if nothing is given, and what `put` raises.
        """
        changes = {"url": url, "event_types": event_types, "timeout": timeout}
        paths = [path for path, value in changes.items() if not isinstance(value, EllipsisType)]
        if not paths:
            raise ValueError(f"name a field that changes: {', '.join(changes)}")
        webhook = _message(
            name,
            "" if isinstance(url, EllipsisType) else url,
            () if isinstance(event_types, EllipsisType) else event_types,
            None if isinstance(timeout, EllipsisType) else timeout,
            etag,
        )
        return await self._update(webhook, paths, False, allow_unreachable)

    async def _update(
        self, webhook: pb.Webhook, paths: Sequence[str], allow_missing: bool, allow_unreachable: bool
    ) -> tuple[Webhook, str]:
        request = rpc.UpdateWebhookRequest(
            webhook=webhook,
            update_mask=FieldMask(paths=paths),
            allow_missing=allow_missing,
            allow_unreachable=allow_unreachable,
        )
        answer = await self._peer.unary(self._stub.UpdateWebhook, request, timeout_seconds=_REACH_SECONDS)
        return webhook_view(answer.webhook), answer.secret

    async def get(self, name: str) -> Webhook:
        """Return one webhook. Raises NotFound."""
        answer = await self._peer.unary(self._stub.GetWebhook, rpc.GetWebhookRequest(name=name))
        return webhook_view(answer.webhook)

    async def list(self) -> Sequence[Webhook]:
        """Return all webhooks of the tenant, ordered by their names."""
        found = paged(self._peer, self._stub.ListWebhooks, rpc.ListWebhooksRequest(), "webhooks")
        return [webhook_view(webhook) async for webhook in found]

    async def pause(self, name: str) -> Webhook:
        """Keep the webhook's messages until it is resumed. Raises NotFound."""
        answer = await self._peer.unary(self._stub.PauseWebhook, rpc.PauseWebhookRequest(name=name))
        return webhook_view(answer.webhook)

    async def resume(self, name: str) -> Webhook:
        """Send the messages that wait now, also if the mesh paused the webhook. Raises NotFound."""
        answer = await self._peer.unary(self._stub.ResumeWebhook, rpc.ResumeWebhookRequest(name=name))
        return webhook_view(answer.webhook)

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Delete the webhook with its deliveries, if it exists.

        With an etag, delete this version alone. Raises Conflict ETAG_DIFFERS.
        """
        request = rpc.DeleteWebhookRequest(name=name, etag=etag)
        await self._peer.unary(self._stub.DeleteWebhook, request)

    async def rotate_secret(
        self, name: str, *, keep_previous: timedelta | float | None = None, request_id: str | None = None
    ) -> tuple[Webhook, str]:
        """Give the webhook another secret, and return both.

        Messages are signed with the previous secret too for `keep_previous`: a day if it is None,
        and not at all with 0. A repeat of the last `request_id` returns the same secret. Raises
        NotFound.
        """
        request = rpc.RotateWebhookSecretRequest(
            name=name,
            request_id=request_id or uuid.uuid4().hex,
            keep_previous=None if keep_previous is None else duration_of(seconds_of(keep_previous)),
        )
        answer = await self._peer.unary(self._stub.RotateWebhookSecret, request)
        return webhook_view(answer.webhook), answer.secret

    async def test(self, name: str) -> WebhookDelivery:
        """Send the webhook a `webhook.test` once, even if it is paused, and return the delivery.

        Its state is DELIVERED or FAILED. Raises NotFound.
        """
        answer = await self._peer.unary(
            self._stub.TestWebhook, rpc.TestWebhookRequest(name=name), timeout_seconds=_REACH_SECONDS
        )
        return delivery_view(answer.delivery)

    async def deliveries(
        self,
        name: str,
        *,
        state: str = "",
        event_type: str = "",
        session_id: str = "",
        since: datetime | timedelta | None = None,
        before: datetime | None = None,
    ) -> AsyncIterator[WebhookDelivery]:
        """Yield the messages of a webhook that fulfil all given conditions, newest event first.

        One that waited for a day behind others that failed is FAILED without `attempts`.
        `state` is a word such as `WebhookDeliveryState.FAILED` or `"FAILED"`. `since` is the time
        of the oldest event, or how long ago that is. Raises ValueError for an unknown word or type
        and for a time without a zone, and NotFound.
        """
        number = number_of(state, pb.WebhookDeliveryState.DESCRIPTOR)
        request = rpc.ListWebhookDeliveriesRequest(
            name=name,
            state=pb.WebhookDeliveryState.ValueType(number),
            event_type=event_type_number(event_type),
            session_id=session_id,
            start_time=None if since is None else stamp_of(since),
            end_time=None if before is None else stamp_of(before),
        )
        async for one in paged(self._peer, self._stub.ListWebhookDeliveries, request, "deliveries"):
            yield delivery_view(one)

    async def replay(self, name: str, event_ids: Sequence[str]) -> int:
        """Send up to 100 messages again, with the same ids and bodies. Return how many were queued.

        One that is pending, and a test, stays as it is. Raises NotFound, with nothing queued, if
        there is no such webhook or message.
        """
        events = rpc.WebhookEventIds(event_ids=event_ids)
        request = rpc.ReplayWebhookDeliveriesRequest(name=name, events=events)
        answer = await self._peer.unary(self._stub.ReplayWebhookDeliveries, request)
        return answer.replayed_count

    async def replay_failed(self, name: str, *, since: datetime | timedelta) -> int:
        """Send all messages again that were given up, of events since then.

        `since` is as for `deliveries`. A message is given up a day after its event. Return
        how many were queued. Raises NotFound.
        """
        request = rpc.ReplayWebhookDeliveriesRequest(name=name, failed_since_time=stamp_of(since))
        count, is_partial = 0, True
        while is_partial:
            answer = await self._peer.unary(self._stub.ReplayWebhookDeliveries, request)
            count, is_partial = count + answer.replayed_count, answer.is_partial
        return count

    @property
    def _peer(self) -> TokenPeer:
        return self._wire.service("hook")

    @property
    def _stub(self) -> "WebhookServiceAsyncStub":
        return WebhookServiceStub(self._peer.channel)


def _message(
    name: str, url: str, event_types: Sequence[str], timeout: timedelta | float | None, etag: str
) -> pb.Webhook:
    return pb.Webhook(
        name=name,
        url=url,
        event_types=event_type_numbers(event_types),
        timeout=None if timeout is None else duration_of(seconds_of(timeout)),
        etag=etag,
    )
