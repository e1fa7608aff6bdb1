"""UpdateWebhook and GetWebhook."""

import asyncio
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.webhooks import MAX_WEBHOOK_COUNT

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    RUN_ENDED,
    SESSION_ENDED,
    delete,
    log_of,
    names_of,
    pause,
    put_webhook,
    replay,
    resume,
    rotate,
    send_test,
    update,
    webhook_of,
)
from tests.support.waiting import eventually

CHANGED = ("url", "event_types", "timeout")
MALFORMED_PATHS = ["webhook_id", "secret", "timeout.seconds", "event_types.0", ""]


async def test_UpdateWebhook__creates_one_with_defaults(tenant: Tenant) -> None:
    created = await update(tenant, allow_missing=True, url=NO_RECEIVER)
    webhook = created.webhook
    assert (webhook.name, webhook.url, list(webhook.event_types)) == ("w", NO_RECEIVER, [])
    assert webhook.timeout == Duration(seconds=15)
    assert (webhook.paused, webhook.pause_reason) == (False, "")
    assert not webhook.HasField("failing_since_time")
    assert not webhook.HasField("previous_secret_expire_time")
    assert webhook.HasField("create_time")
    assert webhook.etag
    assert created.secret.startswith("whsec_")
    assert await webhook_of(tenant) == webhook


async def test_UpdateWebhook__ignores_what_people_do_not_change(tenant: Tenant) -> None:
    created = await put_webhook(
        tenant,
        NO_RECEIVER,
        paused=True,
        pause_reason="mine",
        failing_since_time=Timestamp(seconds=1),
        previous_secret_expire_time=Timestamp(seconds=2**32),
        create_time=Timestamp(seconds=1),
    )
    webhook = created.webhook
    assert (webhook.paused, webhook.pause_reason) == (False, "")
    assert not webhook.HasField("failing_since_time")
    assert not webhook.HasField("previous_secret_expire_time")
    assert webhook.create_time.seconds > 1


async def test_UpdateWebhook__changes_the_fields_of_the_mask(tenant: Tenant) -> None:
    first = (await put_webhook(tenant, NO_RECEIVER, RUN_ENDED, timeout=Duration(seconds=3))).webhook
    other: dict[str, Any] = {"url": f"{NO_RECEIVER}/b", "timeout": Duration(seconds=9)}
    changed = (await update(tenant, "timeout", **other)).webhook
    assert (changed.url, list(changed.event_types), changed.timeout.seconds) == (first.url, [RUN_ENDED], 9)
    assert changed.etag != first.etag
    changed = (await update(tenant, **other)).webhook
    assert (changed.url, list(changed.event_types), changed.timeout.seconds) == (other["url"], [RUN_ENDED], 9)
    changed = (await update(tenant, "event_types", event_types=[SESSION_ENDED])).webhook
    assert list(changed.event_types) == [SESSION_ENDED]
    changed = (await update(tenant, "*", url=NO_RECEIVER)).webhook
    assert (changed.url, list(changed.event_types), changed.timeout.seconds) == (NO_RECEIVER, [], 15)
    assert changed.create_time == first.create_time
    assert await webhook_of(tenant) == changed


@pytest.mark.parametrize(
    "path",
    [field.name for field in webhook_pb2.Webhook.DESCRIPTOR.fields if field.name not in CHANGED]
    + MALFORMED_PATHS,
)
async def test_UpdateWebhook__a_path_that_people_do_not_change(tenant: Tenant, path: str) -> None:
    before = (await put_webhook(tenant, NO_RECEIVER)).webhook
    with refused(Reason.INVALID_REQUEST):
        await update(tenant, "url", path, url=f"{NO_RECEIVER}/b")
    assert await webhook_of(tenant) == before


async def test_UpdateWebhook__a_missing_webhook(tenant: Tenant) -> None:
    with refused(Reason.NOT_FOUND):
        await update(tenant, url=NO_RECEIVER)
    with refused(Reason.NOT_FOUND):
        await update(tenant, allow_missing=True, url=NO_RECEIVER, etag="abc")
    assert await names_of(tenant) == []
    created = await update(tenant, "timeout", allow_missing=True, url=NO_RECEIVER, event_types=[RUN_ENDED])
    assert (created.webhook.url, list(created.webhook.event_types)) == (NO_RECEIVER, [RUN_ENDED])


async def test_UpdateWebhook__the_etag_of_another_version(tenant: Tenant) -> None:
    first = (await put_webhook(tenant, NO_RECEIVER)).webhook
    second = (await update(tenant, timeout=Duration(seconds=2), etag=first.etag)).webhook
    with refused(Reason.ETAG_DIFFERS) as caught:
        await update(tenant, timeout=Duration(seconds=4), etag=first.etag)
    assert caught.value.facts == {"webhook": "w", "etag": second.etag}
    assert await webhook_of(tenant) == second
    third = (await update(tenant, timeout=Duration(seconds=4), etag=second.etag)).webhook
    assert third.timeout.seconds == 4


async def test_UpdateWebhook__each_change_makes_another_etag(tenant: Tenant) -> None:
    etags = [(await put_webhook(tenant, NO_RECEIVER)).webhook.etag]
    etags.append((await pause(tenant)).etag)
    etags.append((await resume(tenant)).etag)
    etags.append((await rotate(tenant, "r")).webhook.etag)
    etags.append((await update(tenant, timeout=Duration(seconds=2))).webhook.etag)
    etags.append((await update(tenant, timeout=Duration(seconds=15))).webhook.etag)
    await delete(tenant)
    etags.append((await put_webhook(tenant, NO_RECEIVER)).webhook.etag)
    assert len(set(etags)) == len(etags)


async def test_UpdateWebhook__the_same_content_changes_nothing_and_needs_no_etag(tenant: Tenant) -> None:
    first = await put_webhook(tenant, NO_RECEIVER, RUN_ENDED, SESSION_ENDED)
    again = await update(tenant, "*", url=NO_RECEIVER, event_types=[SESSION_ENDED, RUN_ENDED], etag="old")
    assert again == first
    assert await update(tenant, timeout=Duration(seconds=15), etag="old") == first
    assert await update(tenant, etag="old") == first


async def test_UpdateWebhook__concurrent_changes_with_one_etag(tenant: Tenant) -> None:
    first = (await put_webhook(tenant, NO_RECEIVER)).webhook
    changes = [update(tenant, timeout=Duration(seconds=2 + n), etag=first.etag) for n in range(4)]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    refusals = [one.reason for one in answers if isinstance(one, MeshError)]
    assert refusals == [Reason.ETAG_DIFFERS] * 3


async def test_UpdateWebhook__at_most_so_many_webhooks(
    mesh: HookMesh, tenant: Tenant, databases: dict[str, ServiceDsn]
) -> None:
    other = mesh.tenant(tenant._session)
    await put_webhook(other, NO_RECEIVER)
    for number in range(MAX_WEBHOOK_COUNT - 2):
        await put_webhook(tenant, NO_RECEIVER, name=f"w{number}")
    late = [put_webhook(tenant, NO_RECEIVER, name=f"late-{number}") for number in range(5)]
    async with await psycopg.AsyncConnection.connect(databases["hook"].owner) as blocking:
        # None of them adds its webhook before all have counted, or wait for another one.
        await blocking.execute("lock table webhooks in share row exclusive mode")
        creating = asyncio.gather(*late, return_exceptions=True)
        await eventually(lambda: _are_waiting(databases["hook"], len(late)))
    answers = await creating
    refusals = [one for one in answers if isinstance(one, MeshError)]
    assert [one.reason for one in refusals] == [Reason.WEBHOOK_COUNT_EXCEEDED] * 3
    assert len(await names_of(tenant)) == MAX_WEBHOOK_COUNT
    await put_webhook(tenant, f"{NO_RECEIVER}/b", name="w0")
    await delete(tenant, "w1")
    await put_webhook(tenant, NO_RECEIVER, name="another")
    with refused(Reason.WEBHOOK_COUNT_EXCEEDED):
        await put_webhook(tenant, NO_RECEIVER, name="one-too-many")


async def _are_waiting(database: ServiceDsn, count: int) -> bool:
    """Return whether so many transactions wait for others."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and usename = current_user"
    async with await psycopg.AsyncConnection.connect(database.app) as connection:
        [waiting] = await (await connection.execute(query)).fetchone() or (0,)
    return bool(waiting == count)


async def test_UpdateWebhook__concurrent_creations_of_one_name(tenant: Tenant) -> None:
    await tenant.prepare(1)
    answers = await asyncio.gather(*(put_webhook(tenant, NO_RECEIVER) for _ in range(5)))
    assert len({one.secret for one in answers}) == 1
    assert {one.webhook.etag for one in answers} == {(await webhook_of(tenant)).etag}


async def test_a_service_without_a_signing_key_does_not_start(mesh: HookMesh) -> None:
    with pytest.raises(SystemExit, match="hook: signing_key_file is needed to sign calls of webhooks"):
        await mesh.replica(signing_key_file=None)


async def test_UpdateWebhook__an_unknown_tenant(tenant: Tenant) -> None:
    tenant.is_ready = True  # Its settings were never sent.
    with refused(Reason.UNKNOWN_TENANT):
        await update(tenant, url=NO_RECEIVER, allow_missing=True)


@pytest.mark.parametrize("name", ["", "A", "-a", "a_b", "a" * 64, "a.b", "a\n", "ä"])
async def test_UpdateWebhook__a_malformed_name(tenant: Tenant, name: str) -> None:
    with refused(Reason.INVALID_REQUEST):
        await put_webhook(tenant, NO_RECEIVER, name=name)


@pytest.mark.parametrize(
    "fields",
    [
        {"event_types": [webhook_pb2.WEBHOOK_EVENT_TYPE_UNSPECIFIED]},
        {"event_types": [webhook_pb2.WEBHOOK_EVENT_TYPE_WEBHOOK_TEST]},
        {"event_types": [RUN_ENDED, RUN_ENDED]},
        {"event_types": [99]},
        {"timeout": Duration(nanos=999_999_999)},
        {"timeout": Duration(seconds=31)},
        {"timeout": Duration(seconds=-1)},
    ],
)
async def test_UpdateWebhook__malformed_types_or_timeout(tenant: Tenant, fields: dict[str, Any]) -> None:
    with refused(Reason.INVALID_REQUEST):
        await update(tenant, allow_missing=True, url=NO_RECEIVER, **fields)
    assert await names_of(tenant) == []


async def test_GetWebhook__its_own_tenants_alone(mesh: HookMesh, tenant: Tenant) -> None:
    put = await put_webhook(tenant, NO_RECEIVER)
    other = mesh.tenant(tenant._session)
    assert await webhook_of(tenant) == put.webhook
    calls = (webhook_of(other), pause(other), resume(other), rotate(other, "r"), send_test(other))
    for call in (*calls, log_of(other), replay(other, "evt_1"), update(other, url=NO_RECEIVER)):
        with refused(Reason.NOT_FOUND):
            await call
    await delete(other)
    assert await webhook_of(tenant) == put.webhook
    with refused(Reason.NOT_FOUND):
        await webhook_of(tenant, "another")
