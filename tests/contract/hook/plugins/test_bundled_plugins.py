"""Bundled plugins, which the operator lists in a file."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.__main__ import main
from spawnmesh_plugin import Handlers, deny, hook
from spawnmesh_plugin.webhook import WebhookPlugin

from tests.support.captured_logs import captured_warnings
from tests.support.hook.fixtures import DEAD_ENDPOINT, ENDED, FINALIZE, SPAWN, HookMesh, refused
from tests.support.hook.scripted_plugin import ALLOW, revise
from tests.support.hook.scripted_plugin import deny as denied
from tests.support.hook.webhook_server import https_site, write_certificate


async def test_bundled_plugins_come_from_a_file_and_tenants_cannot_change_them(
    mesh: HookMesh, tmp_path: Path
) -> None:
    own, theirs = await mesh.plugin(revise("theirs")), await mesh.plugin(revise("ours"))
    file = tmp_path / "bundled.json"
    entries = [
        {"name": "gate", "endpoint": theirs.endpoint, "hooks": ["BEFORE_AGENT_FINALIZE"]},
        {"name": "elsewhere", "endpoint": DEAD_ENDPOINT, "hooks": ["BEFORE_SPAWN"], "tenants": ["other"]},
    ]
    file.write_text(json.dumps(entries))
    tenant = mesh.tenant(await mesh.replica(bundled_plugins_file=file, allow_private_endpoints=True))
    await tenant.register("own", own.endpoint, FINALIZE)
    assert await tenant.plugin_names() == ["gate", "own"]
    merged = await tenant.draft("k", draft_text="seen")
    assert (merged.decision, list(merged.decided_by)) == (revise("ours\n\ntheirs"), ["gate", "own"])
    assert (theirs.heard[0].draft_text, own.heard[0].draft_text) == ("seen", "")
    for rpc, request in (
        ("PausePlugin", pb.PausePluginRequest(name="gate")),
        ("DeletePlugin", pb.DeletePluginRequest(name="gate")),
    ):
        with refused(Reason.ALREADY_EXISTS):
            await tenant.as_client(rpc, request)
    with refused(Reason.ALREADY_EXISTS):
        await tenant.register("gate", own.endpoint, SPAWN)


async def test_a_bundled_plugin_may_have_an_endpoint_that_tenants_may_not(
    mesh: HookMesh, tmp_path: Path
) -> None:
    plugin = await mesh.plugin(denied("no"))
    file = tmp_path / "bundled.json"
    file.write_text(json.dumps([{"name": "gate", "endpoint": plugin.endpoint, "hooks": ["BEFORE_SPAWN"]}]))
    tenant = mesh.tenant(await mesh.replica(bundled_plugins_file=file, allow_private_endpoints=False))
    assert (await tenant.spawn()).decision == denied("no")


async def test_a_bundled_webhook_is_signed_with_the_secret_that_the_command_prints(
    mesh: HookMesh,
    databases: dict[str, ServiceDsn],
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @hook("before_spawn")
    def judge(_event: Any) -> Any:
        return deny("no")

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await plugin.answer(request.headers, await request.read()))

    file, certificate = tmp_path / "bundled.json", write_certificate(tmp_path / "webhook.pem")
    monkeypatch.setenv("HOOK_DATABASE_URL", databases["hook"].app)
    monkeypatch.setenv("HOOK_SIGNING_KEY_FILE", str(keys / "hook.pem"))
    monkeypatch.setenv("HOOK_BUNDLED_PLUGINS_FILE", str(file))
    async with https_site(handle, certificate) as url:
        file.write_text(json.dumps([{"name": "gate", "endpoint": url, "hooks": ["BEFORE_SPAWN"]}]))
        main(["webhook-secret", "gate"])
        plugin = WebhookPlugin(Handlers([judge]), capsys.readouterr().out.strip())
        with pytest.raises(SystemExit, match="no bundled plugin"):
            main(["webhook-secret", "gates"])
        replica = await mesh.replica(bundled_plugins_file=file, webhook_ca_file=certificate)
        for tenant in (mesh.tenant(replica), mesh.tenant(replica)):
            assert (await tenant.spawn()).decision == denied("no")


@pytest.mark.parametrize(
    "text", ["{}", "[{}]", '[{"name":"a","endpoint":"ftp://x","hooks":["BEFORE_SPAWN"]}]', "nonsense"]
)
async def test_an_invalid_file_of_bundled_plugins_prevents_the_start(
    mesh: HookMesh, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "bundled.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="bundled plugins"):
        await mesh.replica(bundled_plugins_file=file)


async def test_a_bundled_plugin_shadows_the_tenants_plugin_of_its_name(
    mesh: HookMesh, tmp_path: Path
) -> None:
    own, operators = await mesh.plugin(ALLOW), await mesh.plugin(denied("no"))
    file = tmp_path / "bundled.json"
    file.write_text(
        json.dumps([{"name": "audit", "endpoint": operators.endpoint, "hooks": ["SUBAGENT_ENDED"]}])
    )
    before = mesh.tenant(await mesh.replica())
    await before.register("audit", own.endpoint, ENDED, SPAWN)
    assert (await before.ended("e:1"), (await before.spawn()).decision) == (1, ALLOW)
    tenant = before.on(await mesh.replica(bundled_plugins_file=file))
    with captured_warnings() as logged:
        assert await tenant.ended("e:2") == 1
        [listed] = (await tenant.as_client("ListPlugins", pb.ListPluginsRequest())).plugins
    assert (listed.name, listed.bundled) == ("audit", True)
    assert [line["plugin"] for line in logged if line["event"] == "plugin_shadowed_by_bundled"] == ["audit"]
    own.heard.clear()
    await tenant.spawn()
    for rpc, request in (
        ("PausePlugin", pb.PausePluginRequest(name="audit")),
        ("ResumePlugin", pb.ResumePluginRequest(name="audit")),
    ):
        with refused(Reason.ALREADY_EXISTS):
            await tenant.as_client(rpc, request)
    await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="audit"))
    assert await before.plugin_names() == []
    with refused(Reason.ALREADY_EXISTS):
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="audit"))
    await (await mesh.worker(bundled_plugins_file=file)).deliveries.run_due()
    assert (sorted(event.event_key for event in operators.heard), own.heard) == (["e:1", "e:2"], [])


async def test_a_name_bundled_for_other_tenants_does_not_shadow(mesh: HookMesh, tmp_path: Path) -> None:
    file = tmp_path / "bundled.json"
    entry = {"name": "gate", "endpoint": DEAD_ENDPOINT, "hooks": ["BEFORE_SPAWN"], "tenants": ["other"]}
    file.write_text(json.dumps([entry]))
    before = mesh.tenant(await mesh.replica())
    await before.register("gate", (await mesh.plugin(denied("no"))).endpoint, SPAWN)
    tenant = before.on(await mesh.replica(bundled_plugins_file=file))
    assert (await tenant.spawn()).decision == denied("no")
    await tenant.as_client("PausePlugin", pb.PausePluginRequest(name="gate"))
    assert (await tenant.spawn()).decision == ALLOW
    for _ in range(2):
        await tenant.as_client("DeletePlugin", pb.DeletePluginRequest(name="gate"))
    assert await tenant.plugin_names() == []
