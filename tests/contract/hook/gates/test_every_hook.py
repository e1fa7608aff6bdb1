"""Every hook of the proto reaches an SDK handler, over gRPC and as a webhook."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import spawnmesh_plugin as hooks
from aiohttp import web
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh_devstack.ports import free_ports
from spawnmesh_plugin import Handlers, hook
from spawnmesh_plugin.handlers import OBSERVED_HOOKS, REQUEST_HOOKS
from spawnmesh_plugin.serving import ALL_TENANTS, plugin_server
from spawnmesh_plugin.webhook import WebhookPlugin
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import CONTENT, CONTROL, INJECTION, HookMesh, Tenant
from tests.support.hook.webhook_server import https_site, write_certificate

ANSWERS = {
    "before_spawn": (hooks.deny("no"), "deny"),
    "before_agent_finalize": (hooks.revise("again"), "revise"),
    "before_model_resolve": (hooks.use_model("small"), "chosen"),
    "before_prompt_build": (hooks.change_prompt(context="c"), "changed"),
    "before_tool_call": (hooks.rewrite({"a": 1}), "rewrite"),
    "delivery_target": (hooks.deliver_to("chat:7"), "chosen"),
    "before_compaction": (hooks.compact("Keep the names."), "compact"),
}
SILENT = {
    "before_spawn": "allow",
    "before_agent_finalize": "continue",
    "before_model_resolve": "continue",
    "before_prompt_build": "continue",
    "before_tool_call": "proceed",
    "delivery_target": "continue",
    "before_compaction": "compact",
}
KINDS = [value for _, value in HookKind.items() if value]


class Recorder:
    """Handles every hook and answers as `ANSWERS` says, or with nothing."""

    def __init__(self, *, silent: bool) -> None:
        self.heard: list[str] = []
        self.silent = silent

    def handlers(self) -> Handlers:
        return Handlers([self._handler(name) for name in (*REQUEST_HOOKS, *OBSERVED_HOOKS)])

    def _handler(self, name: str) -> Any:
        @hook(name)
        async def handle(event: Any) -> Any:
            kind = event.WhichOneof("event") if name in OBSERVED_HOOKS else name
            assert (kind, event.session_id) == (name, "ses_test")
            self.heard.append(name)
            return None if self.silent or name in OBSERVED_HOOKS else ANSWERS[name][0]

        return handle


@asynccontextmanager
async def over_grpc(handlers: Handlers, keys: Path) -> AsyncIterator[str]:
    settings = ProcessSettings(jwks_file=keys / "jwks.json", log_level="error")
    async with start_process("plugin", settings) as process:
        (port,) = free_ports(1)
        endpoint = f"grpc://127.0.0.1:{port}"
        server = plugin_server(process, handlers, endpoint=endpoint, tenants=ALL_TENANTS)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield endpoint
        finally:
            await server.stop(None)


async def register(tenant: Tenant, endpoint: str) -> str:
    plugin = pb.Plugin(name="all", endpoint=endpoint, hooks=KINDS, grants=[CONTENT, CONTROL, INJECTION])
    answer = await tenant.as_client("UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=plugin))
    return str(answer.webhook_secret)


@pytest.mark.parametrize("silent", [False, True], ids=["answering", "silent"])
@pytest.mark.parametrize("wire", ["grpc", "webhook"])
async def test_every_hook_reaches_its_handler(
    mesh: HookMesh, keys: Path, tmp_path: Path, wire: str, silent: bool
) -> None:
    certificate = write_certificate(tmp_path / "webhook.pem")
    tenant = mesh.tenant(await mesh.replica(webhook_ca_file=certificate))
    recorder = Recorder(silent=silent)
    async with AsyncExitStack() as stack:
        if wire == "grpc":
            await register(tenant, await stack.enter_async_context(over_grpc(recorder.handlers(), keys)))
        else:
            behind: list[WebhookPlugin] = []

            async def handle(request: web.Request) -> web.Response:
                return web.Response(body=await behind[0].answer(request.headers, await request.read()))

            secret = await register(tenant, await stack.enter_async_context(https_site(handle, certificate)))
            behind.append(WebhookPlugin(recorder.handlers(), secret))
        tried = await tenant.as_client("TestPlugin", pb.TestPluginRequest(name="all"))
    names = [HookKind.Name(row.hook).removeprefix("HOOK_KIND_").lower() for row in tried.deliveries]
    decisions = [decision_of(row) for row in tried.deliveries]
    assert [row.hook for row in tried.deliveries] == KINDS
    assert recorder.heard == names
    answers = SILENT if silent else {name: decision for name, (_, decision) in ANSWERS.items()}
    assert dict(zip(names, decisions, strict=True)) == {name: answers.get(name, "told") for name in names}
    assert all(not row.error for row in tried.deliveries)
