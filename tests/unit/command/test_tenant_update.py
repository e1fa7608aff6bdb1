"""`spawnmesh tenant update`."""

import json

import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_command.cli.tenant_update import settings_of_tenant

from tests.support.command.fake_mesh import mesh, unset

__all__ = ["mesh", "unset"]


async def test_what_is_named_is_asked_for_and_nothing_else(mesh):
    answer = await mesh.run(
        "tenant", "update", "acme", "--set", "max_spawn_depth=3", "--set", "attachments.enabled=true",
        "--set", "archive_after=3600s", "--set", "routing.blind_model_policy=BLIND_MODEL_POLICY_STRIP",
        "--set", "tenant_class=premium", "--reset", "transcripts", "--name", "Acme", "--etag", "e7",
    )  # fmt: skip

    assert answer.exit_code == 0, answer.stderr
    [request] = mesh.tenants.updates
    assert list(request.update_mask.paths) == [
        "settings.max_spawn_depth",
        "settings.attachments.enabled",
        "settings.archive_after",
        "settings.routing.blind_model_policy",
        "settings.tenant_class",
        "settings.transcripts",
        "display_name",
    ]
    tenant = request.tenant
    assert (tenant.tenant_id, tenant.display_name, tenant.etag) == ("acme", "Acme", "e7")
    assert request.tenant.settings.max_spawn_depth == 3
    assert request.tenant.settings.attachments.enabled
    assert request.tenant.settings.tenant_class == "premium"
    assert request.tenant.settings.archive_after.seconds == 3600
    assert not request.tenant.settings.HasField("transcripts")
    assert "v2" in answer.stdout
    assert "attachments.enabled=true" in answer.stdout


async def test_name_can_be_made_empty(mesh):
    await mesh.run("tenant", "update", "acme", "--name", "")

    [request] = mesh.tenants.updates
    assert (list(request.update_mask.paths), request.tenant.display_name) == (["display_name"], "")


async def test_services_with_stale_settings_are_named(mesh):
    mesh.tenants.stale = ("transcript",)
    told = await mesh.run("tenant", "update", "acme", "--set", "max_spawn_depth=3")
    for_programs = await mesh.run("tenant", "update", "acme", "--set", "max_spawn_depth=3", "--json")

    assert (told.exit_code, "transcript" in told.stderr) == (0, True)
    answer = json.loads(for_programs.stdout)
    assert answer["stale_services"] == ["transcript"]
    assert answer["tenant"]["settings"]["max_spawn_depth"] == 3


@pytest.mark.parametrize(
    "arguments", [(), ("--set", "max_spawn_depth"), ("--set", "nothing=1"), ("--set", "max_spawn_depth=deep")]
)
async def test_what_cannot_be_read_is_asked_of_nobody(mesh, arguments):
    refused = await mesh.run("tenant", "update", "acme", *arguments)

    assert refused.exit_code == 2
    assert mesh.tenants.updates == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--set", "max_spawn_depth=3", "--reset", "max_spawn_depth"),
            ("max_spawn_depth=3", "--reset max_spawn_depth"),
        ),
        (
            (
                "--set",
                "max_queued_run_count=1",
                "--set",
                "attachments.max_file_count=7",
                "--reset",
                "attachments",
            ),
            ("attachments.max_file_count=7", "--reset attachments"),
        ),
        (
            ("--set", 'attachments={"enabled": true}', "--reset", "attachments.enabled"),
            ("--set attachments=", "--reset attachments.enabled"),
        ),
        (
            ("--set", "max_spawn_depth=3", "--set", "max_spawn_depth=0"),
            ("max_spawn_depth=3", "max_spawn_depth=0"),
        ),
        (
            ("--set", "attachments.max_file_count=7", "--reset", "attachments.enabled"),
            ("--set attachments.max_file_count=7", "--reset attachments.enabled", "two commands"),
        ),
    ],
)
async def test_what_contradicts_itself_is_asked_of_nobody_and_both_options_are_named(mesh, options, told):
    refused = await mesh.run("tenant", "update", "acme", *options)

    said = " ".join(refused.stderr.replace("│", "").split())
    assert (refused.exit_code, mesh.tenants.updates) == (2, [])
    assert [part for part in told if part not in said] == [], said


async def test_settings_of_nested_messages_are_set_and_reset(mesh):
    options = (
        "--set",
        "transcripts.mask_secrets=true",
        "--reset",
        "attachments.enabled",
        "--reset",
        "max_spawn_depth",
    )
    same = ("--set", "transcripts.token_vocabulary=o200k_base", "--reset", "transcripts.large_payload_bytes")
    answer = await mesh.run("tenant", "update", "acme", *options, *same)

    assert answer.exit_code == 0, answer.stderr
    [request] = mesh.tenants.updates
    assert "settings.attachments.enabled" in request.update_mask.paths
    assert not request.tenant.settings.HasField("attachments")


async def test_settings_are_shown_as_they_are_set(mesh):
    settings = TenantSettings(max_spawn_depth=3)
    settings.attachments.max_file_bytes = 5
    settings.archive_after.seconds = 60

    shown = settings_of_tenant(settings)
    await mesh.run("tenant", "update", "acme", *(part for line in shown for part in ("--set", line)))

    assert set(shown) == {"attachments.max_file_bytes=5", "max_spawn_depth=3", "archive_after=60s"}
    assert mesh.tenants.updates[0].tenant.settings == settings
