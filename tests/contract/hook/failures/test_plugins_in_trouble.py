"""A CLOSED plugin that is up and gives no answer may give one later, whatever it says instead."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as handler_pb_grpc
from spawnmesh_core.errors import is_transient
from spawnmesh_core.reasons import Reason

from tests.support.hook.fixtures import CLOSED, FINALIZE, HookMesh, Tenant, refused
from tests.support.hook.scripted_plugin import CONTINUE
from tests.support.hook.webhook_server import https_site, write_certificate


class Troubled(handler_pb_grpc.HookHandlerServiceServicer):
    """Ends each call with a bare status, until it has none."""

    def __init__(self) -> None:
        self.status: tuple[grpc.StatusCode, str] | None = None

    async def HandleBeforeAgentFinalize(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeAgentFinalizeResponse:
        if self.status is not None:
            await context.abort(*self.status)
        return handler_pb.HandleBeforeAgentFinalizeResponse(decision=CONTINUE)


@asynccontextmanager
async def served(plugin: Troubled) -> AsyncIterator[str]:
    server = grpc.aio.server()
    handler_pb_grpc.add_HookHandlerServiceServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def is_final(tenant: Tenant) -> bool:
    """Offer a draft. Return whether the error says that a repeat would fail again."""
    with refused(Reason.PLUGIN_FAILED) as caught:
        await tenant.draft("k")
    return not is_transient(caught.value)


@pytest.mark.parametrize(
    "code",
    [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK],
)
async def test_no_status_of_a_plugin_fails_the_run_that_it_judges(tenant: Tenant, code: str) -> None:
    plugin = Troubled()
    async with served(plugin) as endpoint:
        await tenant.register("a", endpoint, FINALIZE, policy=CLOSED)
        plugin.status = grpc.StatusCode[code], "the database of the plugin is away"
        assert not await is_final(tenant)
        plugin.status = None
        assert (await tenant.draft("k")).decision == CONTINUE
    assert await tenant.log() == [("a", "failed"), ("a", "continue")]


async def test_draft_that_is_too_large_for_the_plugin_is_offered_in_vain(tenant: Tenant) -> None:
    plugin = Troubled()
    async with served(plugin) as endpoint:
        await tenant.register("a", endpoint, FINALIZE, policy=CLOSED)
        plugin.status = (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (5 vs. 4)",
        )
        assert await is_final(tenant)


@pytest.mark.parametrize(
    ("status", "fails"), [(500, False), (429, False), (401, False), (302, False), (202, True), (413, True)]
)
async def test_only_a_malformed_answer_of_a_webhook_or_a_draft_that_is_too_large_fails_the_run(
    mesh: HookMesh, tmp_path: Path, status: int, fails: bool
) -> None:
    answer = web.Response(body=b"its database is away", status=status)

    async def handle(_request: web.Request) -> web.Response:
        return answer

    certificate = write_certificate(tmp_path / "webhook.pem")
    tenant = mesh.tenant(await mesh.replica(webhook_ca_file=certificate))
    async with https_site(handle, certificate) as url:
        await tenant.register("a", url, FINALIZE, policy=CLOSED)
        assert await is_final(tenant) is fails
