"""Webhooks through the Python client, and messages that their receiver verifies with it."""

from datetime import timedelta

import pytest
from spawnmesh_client import Conflict, Mesh, NotFound, Reason, SignatureRefused
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.webhooks import verify
from spawnmesh_client.wire import WireMesh
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import Tenant
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    Execute,
    Serve,
    WebhookReceiver,
    run_again,
    run_ended,
)


@pytest.fixture
async def client(tenant: Tenant) -> Mesh:
    await tenant.prepare(1)
    token = tenant._clients.client_token(tenant.tenant_id, "tester", 60)
    return Mesh(WireMesh({"hook": TokenPeer(tenant._session.connection, token)}, 2**24))


async def test_receiver_verifies_the_message_of_a_webhook_that_was_put(
    client: Mesh, tenant: Tenant, worker: JobWorker, serve: Serve
) -> None:
    receiver = WebhookReceiver()
    webhook, secret = await client.webhooks.put("a", url=await serve(receiver), event_types=["run.ended"])
    assert webhook.timeout == timedelta(seconds=15)
    await tenant.publish(run_ended())
    await worker.run_due()
    [body], [headers] = receiver.bodies, receiver.headers
    message = verify(secret, headers, body)
    assert (message.type, message.data["run_id"]) == ("run.ended", "run_1")
    [delivery] = [one async for one in client.webhooks.deliveries("a", state="DELIVERED")]
    assert (delivery.event_id, delivery.event_type) == (message.id, message.type)
    assert (delivery.event_time, delivery.body_json) == (message.time, body.decode())
    _, fresh = await client.webhooks.rotate_secret("a", request_id="r1", keep_previous=0)
    assert (await client.webhooks.rotate_secret("a", request_id="r1"))[1] == fresh
    assert await client.webhooks.replay_failed("a", since=timedelta(days=1)) == 0
    assert await client.webhooks.replay("a", [message.id]) == 1
    await worker.run_due()
    assert verify(fresh, receiver.headers[1], receiver.bodies[1]) == message
    with pytest.raises(SignatureRefused):
        verify(secret, receiver.headers[1], receiver.bodies[1])


async def test_webhook_is_tested_changed_paused_and_deleted(
    client: Mesh, tenant: Tenant, worker: JobWorker, execute: Execute, serve: Serve
) -> None:
    receiver = WebhookReceiver(statuses=[503])
    webhook, _ = await client.webhooks.put("a", url=NO_RECEIVER, allow_unreachable=True)
    unreached = await client.webhooks.test("a")
    assert (unreached.event_type, unreached.state) == ("webhook.test", "FAILED")
    assert (unreached.attempts[0].status_code, bool(unreached.attempts[0].error)) == (0, True)
    changed, _ = await client.webhooks.update("a", url=await serve(receiver), etag=webhook.etag)
    with pytest.raises(Conflict) as stale:
        await client.webhooks.update("a", event_types=["run.ended"], etag=webhook.etag)
    assert stale.value.reason is Reason.ETAG_DIFFERS
    answers = [await client.webhooks.test("a") for _ in range(2)]
    assert [(one.state, one.attempts[0].status_code) for one in answers] == [
        ("FAILED", 503),
        ("DELIVERED", 204),
    ]
    assert (await client.webhooks.pause("a")).paused
    await tenant.publish(run_ended())
    await run_again(worker, execute)
    [waiting] = [one async for one in client.webhooks.deliveries("a", event_type="run.ended")]
    assert waiting.state == "PENDING"
    resumed = await client.webhooks.resume("a")
    await worker.run_due()
    [done] = [one async for one in client.webhooks.deliveries("a", session_id="ses_1")]
    assert (resumed.paused, done.state) == (False, "DELIVERED")
    assert changed.etag != resumed.etag
    assert [one.name for one in await client.webhooks.list()] == ["a"]
    await client.webhooks.delete("a")
    with pytest.raises(NotFound):
        await client.webhooks.get("a")
