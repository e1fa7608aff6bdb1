"""UpdateTenant changes the masked fields, and refuses what it cannot change."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.rpc.update_tenant import change_settings

from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.remains import Remains
from tests.support.session.tenant_updates import change, refusal, update, versions
from tests.support.session.worker import components_of


async def test_UpdateTenant__changes_the_masked_fields_and_pushes_them_to_every_service(
    mesh: Mesh, remains: Remains
) -> None:
    assert await versions(mesh, remains) == [1, 1, 1, 1]
    answer = await update(
        mesh,
        "display_name",
        "settings.max_spawn_depth",
        "settings.attachments.max_file_count",
        "settings.transcripts",
        "settings.routing.max_requests_per_minute",
        display_name="Acme",
        settings=TenantSettings(
            max_spawn_depth=1,
            max_live_child_count=77,  # Not named.
            attachments=AttachmentLimits(max_file_count=1),
            transcripts=TranscriptSettings(mask_secrets=True),
            routing=RoutingPolicy(max_requests_per_minute=9),
        ),
    )
    assert list(answer.stale_services) == []
    tenant = await mesh.tenant_state()
    assert tenant == answer.tenant
    assert (tenant.display_name, tenant.settings_version) == ("Acme", 2)
    assert tenant.settings == TenantSettings(
        max_spawn_depth=1,
        attachments=AttachmentLimits(
            enabled=True, max_file_count=1, max_file_bytes=1024 * 1024, max_total_bytes=5 * 1024 * 1024
        ),
        transcripts=TranscriptSettings(mask_secrets=True),
        routing=RoutingPolicy(max_requests_per_minute=9),
    )
    assert await versions(mesh, remains) == [2, 2, 2, 2]
    assert await remains.count(mesh.tenant, "transcript.tenants where mask_secrets") == 1
    assert await remains.count(mesh.tenant, "hook.tenants where mask_secrets") == 1
    assert await remains.count(mesh.tenant, "model_router.tenant_policies where requests_per_minute = 9") == 1
    two = mesh.spawn(attachments=[attachment("a.txt"), attachment("b.txt")])
    assert (await refusal(two)).reason is Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED
    assert await remains.count(mesh.tenant, "session.jobs where kind = 'push_settings'") == 0


async def test_UpdateTenant__pushes_the_tokenizer_to_the_transcript(mesh: Mesh, remains: Remains) -> None:
    settings = TenantSettings(transcripts=TranscriptSettings(token_vocabulary="cl100k_base"))
    await update(mesh, "settings.transcripts", settings=settings)
    assert await remains.count(mesh.tenant, "transcript.tenants where token_vocabulary = 'cl100k_base'") == 1
    await mesh.spawn()
    counted = "transcript.entries where token_count > 0 and token_vocabulary = '{}_base'"
    assert await remains.count(mesh.tenant, counted.format("cl100k")) > 0
    assert await remains.count(mesh.tenant, counted.format("o200k")) == 0


async def test_UpdateTenant__masks_the_events_of_the_next_spawn(mesh: Mesh, peers: dict[str, str]) -> None:
    plugin, task = Plugin(), f"use sk-ant-api03-{'aB3' * 20}"
    async with plugged(mesh, peers, plugin, sees_content=True):
        for mask_secrets in (True, False):
            settings = TenantSettings(transcripts=TranscriptSettings(mask_secrets=mask_secrets))
            await update(mesh, "settings.transcripts", settings=settings)
            await mesh.spawn(task=task)
    assert plugin.tasks == ["use [$redacted:provider_key]", task]


async def test_UpdateTenant__of_what_is_set_or_of_everything(mesh: Mesh) -> None:
    both = TenantSettings(max_spawn_depth=2, routing=RoutingPolicy(max_requests_per_minute=9))
    await update(mesh, "*", display_name="Acme", settings=both)
    few = TenantSettings(attachments=AttachmentLimits(max_file_count=3), routing=RoutingPolicy())
    changed = (await update(mesh, settings=few)).tenant
    assert (changed.display_name, changed.settings.max_spawn_depth) == ("Acme", 2)
    assert changed.settings.attachments.max_file_bytes == 1024 * 1024
    assert changed.settings.attachments.max_file_count == 3
    assert changed.settings.routing.max_requests_per_minute == 9
    assert (await update(mesh)).tenant == changed
    everything = (await update(mesh, "*")).tenant
    assert (everything.display_name, everything.settings.max_spawn_depth) == ("", 0)
    assert everything.settings.attachments.max_file_count == 50
    assert not everything.settings.HasField("routing")


async def test_UpdateTenant__absent_value_of_a_named_field_is_the_default(mesh: Mesh) -> None:
    small = TenantSettings(attachments=AttachmentLimits(enabled=True, max_file_count=1), max_spawn_depth=1)
    await update(mesh, "settings", settings=small)
    reset = await update(mesh, "settings.attachments")
    assert reset.tenant.settings.attachments.max_file_count == 50
    assert reset.tenant.settings.max_spawn_depth == 1
    whole = await update(mesh, "settings")
    assert whole.tenant.settings.max_spawn_depth == 0
    assert whole.tenant.settings_version == 4


async def test_UpdateTenant__field_of_an_absent_message_gets_its_default_and_those_beside_it_stay(
    mesh: Mesh,
) -> None:
    limits = AttachmentLimits(
        max_file_count=3, max_file_bytes=9, max_total_bytes=99, retention=Duration(seconds=60)
    )
    await update(mesh, "settings.attachments", settings=TenantSettings(attachments=limits))
    reset = await update(
        mesh,
        *(f"settings.attachments.{field}" for field in ("enabled", "max_file_bytes", "retention")),
        "settings.transcripts.mask_secrets",
        settings=TenantSettings(max_spawn_depth=1),  # Not named.
    )
    assert reset.tenant.settings == TenantSettings(
        attachments=AttachmentLimits(
            enabled=True, max_file_count=3, max_file_bytes=1024 * 1024, max_total_bytes=99
        ),
        transcripts=TranscriptSettings(),
    )
    none = TenantSettings(attachments=AttachmentLimits())
    zero = await update(
        mesh, "settings.attachments.enabled", "settings.attachments.max_file_count", settings=none
    )
    assert zero.tenant.settings.attachments == AttachmentLimits(
        max_file_bytes=1024 * 1024, max_total_bytes=99
    )
    few = TenantSettings(attachments=AttachmentLimits(max_file_count=4))
    both = await update(mesh, "settings.attachments", "settings.attachments.max_file_count", settings=few)
    assert both.tenant.settings.attachments == AttachmentLimits(max_file_count=4)


def test_a_field_of_settings_that_are_not_stored_gets_its_value_and_those_beside_it_their_defaults() -> None:
    few = TenantSettings(attachments=AttachmentLimits(max_file_count=4))
    paths = (("settings", "attachments", "max_file_count"),)
    _, stored = change_settings(tenant_pb2.Tenant(settings=few), paths, "", {})
    limits = {
        "enabled": True,
        "max_file_count": 4,
        "max_file_bytes": 1024 * 1024,
        "max_total_bytes": 5 * 1024 * 1024,
    }
    assert stored["attachments"] == limits


async def test_UpdateTenant__limits_hold_for_what_begins_from_then_on(mesh: Mesh, remains: Remains) -> None:
    root = await mesh.spawn()
    await mesh.spawn(parent_session_id=root.session_id)
    await update(mesh, "settings.max_live_child_count", settings=TenantSettings(max_live_child_count=1))
    assert (
        await refusal(mesh.spawn(parent_session_id=root.session_id))
    ).reason is Reason.CHILDREN_LIMIT_EXCEEDED
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=root.session_id))
    one = TenantSettings(max_running_run_count=1)
    await update(mesh, "settings.max_running_run_count", settings=one)
    assert await remains.count(mesh.tenant, "session.tenants where max_running_run_count = 1") == 1


async def test_UpdateTenant__sooner_archiving_holds_at_once(mesh: Mesh, remains: Remains) -> None:
    session = await mesh.spawn()
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    async with (
        components_of(mesh.settings) as components,
        components.database.transaction(mesh.tenant) as connection,
    ):
        await connection.execute("update tenants set next_retention_time = now() + interval '1 hour'")
    await update(mesh, "settings.archive_after", settings=TenantSettings(archive_after=Duration(nanos=1000)))
    assert await remains.count(mesh.tenant, "session.tenants where next_retention_time <= now()") == 1


async def test_UpdateTenant__with_an_old_etag_is_refused_and_a_repeat_is_not(
    mesh: Mesh, remains: Remains
) -> None:
    deeper = TenantSettings(max_spawn_depth=2)
    old = (await mesh.tenant_state()).etag
    first = await update(mesh, "settings.max_spawn_depth", etag=old, settings=deeper)
    again = await update(mesh, "settings.max_spawn_depth", etag=old, settings=deeper)
    assert again == first
    other = await refusal(update(mesh, "display_name", etag=old, display_name="late"))
    assert (other.reason, other.facts["version"]) == (Reason.ETAG_DIFFERS, "2")
    assert other.facts["etag"] == first.tenant.etag != old
    assert [violation.field for violation in other.violations] == ["tenant.etag"]
    assert (await mesh.tenant_state()).display_name == ""
    in_time = await update(mesh, "display_name", etag=other.facts["etag"], display_name="in time")
    assert in_time.tenant.settings_version == 3
    assert await versions(mesh, remains) == [3, 3, 3, 3]


async def test_UpdateTenant__several_with_one_etag_and_one_of_them_wins(mesh: Mesh, remains: Remains) -> None:
    settings = [TenantSettings(max_spawn_depth=depth) for depth in range(10, 16)]
    etag = (await mesh.tenant_state()).etag
    calls = [update(mesh, "settings.max_spawn_depth", etag=etag, settings=one) for one in settings]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    [won] = [answer for answer in answers if isinstance(answer, tenant_pb.UpdateTenantResponse)]
    lost = [answer.reason for answer in answers if isinstance(answer, MeshError)]
    assert lost == [Reason.ETAG_DIFFERS] * 5
    assert await mesh.tenant_state() == won.tenant
    assert await versions(mesh, remains) == [2, 2, 2, 2]


async def test_UpdateTenant__refusals(mesh: Mesh) -> None:
    for paths in (
        ("*", "display_name"),
        ("etag",),
        ("tenant_id",),
        ("settings.nothing",),
        ("settings.archive_after.seconds",),
        ("display_name.x",),
        ("",),
    ):
        assert (await refusal(update(mesh, *paths))).reason is Reason.INVALID_REQUEST, paths
    too_deep = TenantSettings(max_spawn_depth=65)
    assert (await refusal(update(mesh, "settings", settings=too_deep))).reason is Reason.INVALID_REQUEST
    assert (await refusal(update(mesh, "display_name", display_name="\0"))).reason is Reason.INVALID_REQUEST
    nobody = Mesh(mesh.peer, mesh.keys, mesh.settings)
    assert (await refusal(update(nobody, "display_name"))).reason is Reason.UNKNOWN_TENANT
    stub: Any = TenantServiceStub(mesh.peer.channel)
    held = await mesh.claim((await mesh.spawn()).session_id)
    request = change(mesh, "display_name", display_name="mine")
    assert (await refusal(mesh.client(stub.UpdateTenant, request))).reason is Reason.CALLER_NOT_ALLOWED
    assert (await refusal(mesh.run(held, stub.UpdateTenant, request))).reason is Reason.CALLER_NOT_ALLOWED
    await mesh.delete_tenant()
    assert (await refusal(update(mesh, "display_name"))).reason is Reason.UNKNOWN_TENANT


async def test_UpdateTenant__class_is_one_of_the_operator_and_reaches_the_model_router(
    mesh: Mesh, remains: Remains
) -> None:
    stored = "select tenant_class from model_router.tenant_policies where tenant_id = %(tenant)s"

    async def kept() -> str:
        async with await psycopg.AsyncConnection.connect(remains.dsn) as connection:
            row = await (await connection.execute(stored, {"tenant": mesh.tenant})).fetchone()
        assert row is not None
        return str(row[0])

    assert await kept() == ""
    await update(mesh, "settings.tenant_class", settings=TenantSettings(tenant_class="premium"))
    assert await kept() == "premium"
    unknown = TenantSettings(tenant_class="gold")
    refused = await refusal(update(mesh, "settings.tenant_class", settings=unknown))
    assert refused.reason is Reason.INVALID_REQUEST
    assert [one.field for one in refused.violations] == ["settings.tenant_class"]
    assert "free, standard, premium, internal" in refused.violations[0].description
    created = await refusal(mesh.create_tenant(f"t-{uuid4().hex[:12]}", unknown))
    assert created.reason is Reason.INVALID_REQUEST
    assert await kept() == "premium"
    await update(mesh, "settings.tenant_class", settings=TenantSettings())
    assert await kept() == ""


async def test_UpdateTenant__class_that_the_operator_removed_stays_until_it_is_changed(
    mesh: Mesh, open_mesh: OpenMesh
) -> None:
    await update(mesh, "settings.tenant_class", settings=TenantSettings(tenant_class="premium"))
    async with open_mesh(tenant_classes=("gold",)) as later:
        later.tenant = mesh.tenant
        answer = await update(later, "settings.max_spawn_depth", settings=TenantSettings(max_spawn_depth=2))
        assert answer.tenant.settings.tenant_class == "premium"
        await update(later, "settings.tenant_class", settings=TenantSettings(tenant_class="gold"))
        back = TenantSettings(tenant_class="premium")
        refused = await refusal(update(later, "settings.tenant_class", settings=back))
        assert refused.reason is Reason.INVALID_REQUEST
