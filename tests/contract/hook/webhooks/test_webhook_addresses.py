"""The addresses of webhooks: which of them UpdateWebhook accepts, and when it connects to one."""

from collections.abc import Iterable
from ipaddress import ip_address

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.endpoints import Address
from spawnmesh_postgres.jobs.worker import JobWorker

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    RUN_ENDED,
    Serve,
    WebhookReceiver,
    delete,
    names_of,
    put_webhook,
    run_ended,
    send_test,
    update,
    webhook_of,
)
from tests.support.hook.webhook_server import https_site


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://[::ffff:10.0.0.1]/x",
        "https://169.254.169.254/latest/meta-data",
        "https://10.1.2.3/x",
        "https://localhost/x",
        "https://0x7f000001/x",
        "https://inside.test/x",
        "https://both.test/x",
    ],
)
async def test_UpdateWebhook__an_address_that_is_not_allowed(mesh: HookMesh, url: str) -> None:
    replica = await mesh.replica(allow_private_endpoints=False, resolve=_addresses)
    tenant = mesh.tenant(replica)
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await put_webhook(tenant, url)
    assert await names_of(tenant) == []
    await put_webhook(tenant, "https://outside.test/x")
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await update(tenant, url=url)
    assert (await webhook_of(tenant)).url == "https://outside.test/x"


def _addresses(host: str) -> Iterable[Address]:
    outside, inside, loopback = map(ip_address, ("93.184.216.34", "10.0.0.7", "127.0.0.1"))
    return {
        "outside.test": [outside],
        "both.test": [outside, inside],
        "nowhere.test": [],
        "here.test": [loopback],
        "here-and-inside.test": [loopback, inside],
    }.get(host, [inside])


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://127.0.0.1:1/x", "grpc://127.0.0.1:1", "https://", "https:///x", "https://a@127.0.0.1/x"),
        *("http://", "http://127.0.0.1:0/x", "http://127.0.0.1:1/#a", "https://h/#a", "HTTPS://127.0.0.1/x"),
        *("https://127.0.0.1:0/x", "https://127.0.0.1:65536/x", "https://127.0.0.1:1/a b"),
        *(f"https://127.0.0.1:1/{'x' * 512}", "https://127.0.0.1:1/\nHost: a"),
    ],
)
async def test_UpdateWebhook__an_address_that_is_no_url_of_a_webhook(tenant: Tenant, url: str) -> None:
    with refused(Reason.INVALID_REQUEST) as caught:
        await put_webhook(tenant, url)
    assert [one.field for one in caught.value.violations] == ["webhook.url"]
    assert await names_of(tenant) == []


async def test_TestWebhook__a_name_that_leads_elsewhere_by_now(mesh: HookMesh) -> None:
    addresses = [ip_address("93.184.216.34")]
    replica = await mesh.replica(allow_private_endpoints=False, resolve=lambda _: addresses)
    tenant = mesh.tenant(replica)
    await put_webhook(tenant, "https://moving.test/x")
    addresses[:] = [ip_address("127.0.0.1")]
    assert [(one.status_code, one.error) for one in (await send_test(tenant)).attempts] == [
        (0, "the operator does not allow its address any more")
    ]
    addresses.clear()
    assert [one.error for one in (await send_test(tenant)).attempts] == [
        "the DNS lookup of its name failed: its name has no address"
    ]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        *("outside.test", "inside.test", "nowhere.test", "here-and-inside.test", "10.1.2.3", "192.168.0.1"),
        *("93.184.216.34", "[fd00::1]", "169.254.169.254", "0.0.0.0"),
    ],
)
async def test_UpdateWebhook__without_tls_for_other_machines(
    mesh: HookMesh, host: str, private: bool
) -> None:
    tenant = mesh.tenant(await mesh.replica(allow_private_endpoints=private, resolve=_addresses))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await put_webhook(tenant, f"http://{host}/x")
    assert await names_of(tenant) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "here.test"])
async def test_UpdateWebhook__without_tls_needs_both_settings(mesh: HookMesh, host: str) -> None:
    for private, plain in ((True, False), (False, True), (True, True)):
        replica = await mesh.replica(
            allow_private_endpoints=private, allow_plain_webhooks=plain, resolve=_addresses
        )
        tenant = mesh.tenant(replica)
        if private and plain:
            await put_webhook(tenant, f"http://{host}:1/x")
            continue
        with refused(Reason.ENDPOINT_NOT_ALLOWED):
            await put_webhook(tenant, f"http://{host}:1/x")
        assert await names_of(tenant) == []


async def test_UpdateWebhook__without_tls_on_loopback(
    mesh: HookMesh, tenant: Tenant, worker: JobWorker
) -> None:
    receiver = WebhookReceiver()
    async with https_site(receiver.handle, None) as url:
        put = await put_webhook(tenant, url)
        await update(tenant, url=f"{url}/b", allow_unreachable=False)
        await tenant.publish(run_ended())
        await worker.run_due()
    assert receiver.is_signed(put.secret)
    stricter = tenant.on(await mesh.replica(allow_private_endpoints=False))
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await update(stricter, url=url)
    assert [one.error for one in (await send_test(stricter)).attempts] == [
        "the operator does not allow its address any more"
    ]


async def test_UpdateWebhook__nothing_answers_at_the_address(tenant: Tenant, serve: Serve) -> None:
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await update(tenant, url=NO_RECEIVER, allow_missing=True, allow_unreachable=False)
    assert await names_of(tenant) == []
    receiver = WebhookReceiver()
    await update(tenant, url=await serve(receiver), allow_missing=True, allow_unreachable=False)
    assert receiver.bodies == []
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await update(tenant, url=NO_RECEIVER, allow_unreachable=False)
    await update(tenant, url=NO_RECEIVER)
    changed = await update(tenant, timeout=Duration(seconds=2), allow_unreachable=False)
    assert changed.webhook.timeout.seconds == 2


async def test_UpdateWebhook__a_repeat_needs_no_receiver(tenant: Tenant, serve: Serve) -> None:
    """The address was checked when it was stored: another call does not connect to it."""
    receiver = WebhookReceiver()
    async with https_site(receiver.handle, None) as url:
        first = await update(tenant, allow_missing=True, allow_unreachable=False, url=url)
    assert await update(tenant, allow_missing=True, allow_unreachable=False, url=url) == first
    changed = await update(tenant, allow_unreachable=False, url=url, event_types=[RUN_ENDED])
    assert (changed.webhook.url, list(changed.webhook.event_types)) == (url, [RUN_ENDED])
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await update(tenant, allow_unreachable=False, url=f"{url}/b")
    await delete(tenant)
    with refused(Reason.ENDPOINT_NOT_REACHED):
        await update(tenant, allow_missing=True, allow_unreachable=False, url=url)


async def test_UpdateWebhook__an_address_that_is_not_allowed_any_more_can_stay(
    mesh: HookMesh, tenant: Tenant
) -> None:
    await put_webhook(tenant, NO_RECEIVER)
    stricter = tenant.on(await mesh.replica(allow_private_endpoints=False))
    changed = await update(stricter, timeout=Duration(seconds=2), allow_unreachable=False)
    assert changed.webhook.url == NO_RECEIVER
    with refused(Reason.ENDPOINT_NOT_ALLOWED):
        await update(stricter, url=f"{NO_RECEIVER}/b")
