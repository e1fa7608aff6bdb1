"""The session service knows the events of a webhook before the webhook is stored."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_service_pb2_grpc import (
    TenantServiceServicer,
    add_TenantServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.webhooks import TYPE_OF_HOOK
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.hook.fixtures import HookMesh, Tenant, refused
from tests.support.hook.webhook_receiver import (
    NO_RECEIVER,
    RUN_ENDED,
    SESSION_ENDED,
    Execute,
    call_webhooks,
    delete,
    names_of,
    put_webhook,
    webhook_of,
)
from tests.support.serving import served, shared_settings

NOWHERE = "127.0.0.1:1"
REFUSED = "https://169.254.169.254/latest/meta-data"


class EnablingSession(TenantServiceServicer):
    """Records the hooks that it is told of, and the webhooks that are stored at that time."""

    def __init__(self, execute: Execute) -> None:
        self.enabled: list[tuple[str, set[int], list[Any]]] = []
        self.error: MeshError | None = None
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """Called once, when hooks are enabled."""
        self._execute = execute

    async def EnableHooks(self, request: Any, context: Any) -> tenant_pb.EnableHooksResponse:
        if self.error is not None:
            raise self.error
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        stored = await self._execute("select event_types from webhooks")
        self.enabled.append((request.tenant_id, set(request.hooks), stored))
        return tenant_pb.EnableHooksResponse()

    async def EnableSharedHooks(self, request: Any, context: Any) -> tenant_pb.EnableSharedHooksResponse:
        return tenant_pb.EnableSharedHooksResponse()

    @asynccontextmanager
    async def open(self, process: Process, _settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        add_TenantServiceServicer_to_server(self, server)
        yield server


async def test_UpdateWebhook__enables_the_events_before_the_webhook_is_stored(
    mesh: HookMesh, tenant: Tenant, execute: Execute, keys: Path
) -> None:
    session = EnablingSession(execute)
    settings = ProcessSettings(**shared_settings("session", keys))
    async with served("session", settings, session.open) as target:
        here = tenant.on(await mesh.replica(session_target=target, revocations_wait_seconds=0.0))
        await put_webhook(here, NO_RECEIVER, RUN_ENDED)
        await put_webhook(here, NO_RECEIVER, RUN_ENDED, SESSION_ENDED)
        await put_webhook(here, NO_RECEIVER, name="everything")
    ends = events.HOOK_KIND_AGENT_END
    every = {events.HookKind.Value(f"HOOK_KIND_{hook}") for hook in TYPE_OF_HOOK}
    assert session.enabled == [
        (tenant.tenant_id, {ends}, []),
        (tenant.tenant_id, {ends, events.HOOK_KIND_SESSION_END}, [(["run.ended"],)]),
        (tenant.tenant_id, every, [(["session.ended", "run.ended"],)]),
    ]


@pytest.mark.parametrize("url", [REFUSED, NO_RECEIVER])
async def test_UpdateWebhook__a_webhook_that_is_deleted_meanwhile_has_no_unchecked_address(
    mesh: HookMesh, tenant: Tenant, execute: Execute, keys: Path, url: str
) -> None:
    """The call changes the time-out alone, and would then create a webhook with its own address."""
    session = EnablingSession(execute)
    settings = ProcessSettings(**shared_settings("session", keys))
    await put_webhook(tenant, NO_RECEIVER)
    webhook = webhook_pb2.Webhook(name="w", url=url, timeout=Duration(seconds=2))
    request = pb.UpdateWebhookRequest(webhook=webhook, allow_missing=True)
    request.update_mask.paths.append("timeout")
    async with served("session", settings, session.open) as target:
        here = tenant.on(await mesh.replica(session_target=target, revocations_wait_seconds=0.0))
        session.meanwhile = partial(delete, tenant)
        is_refused = Reason.ENDPOINT_NOT_ALLOWED if url == REFUSED else Reason.ENDPOINT_NOT_REACHED
        with refused(is_refused):
            await call_webhooks(here, "UpdateWebhook", request)
    assert len(session.enabled) == 1
    assert await names_of(tenant) == []


async def test_UpdateWebhook__nothing_is_stored_if_the_events_are_not_enabled(
    mesh: HookMesh, tenant: Tenant, execute: Execute, keys: Path
) -> None:
    session = EnablingSession(execute)
    session.error = MeshError(Reason.UNKNOWN_TENANT, "this tenant does not exist")
    settings = ProcessSettings(**shared_settings("session", keys))
    before = (await put_webhook(tenant, NO_RECEIVER, RUN_ENDED, name="old")).webhook
    async with served("session", settings, session.open) as target:
        here = tenant.on(await mesh.replica(session_target=target, revocations_wait_seconds=0.0))
        for name in ("old", "new"):
            with refused(Reason.UNKNOWN_TENANT):
                await put_webhook(here, NO_RECEIVER, RUN_ENDED, SESSION_ENDED, name=name)
    assert await names_of(tenant) == ["old"]
    assert await webhook_of(tenant, "old") == before


async def test_UpdateWebhook__without_the_session_service(mesh: HookMesh, tenant: Tenant) -> None:
    await tenant.prepare(1)
    here = tenant.on(await mesh.replica(session_target=NOWHERE, revocations_wait_seconds=0.0))
    webhook = webhook_pb2.Webhook(name="w", url=NO_RECEIVER)
    request = pb.UpdateWebhookRequest(webhook=webhook, allow_missing=True, allow_unreachable=True)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await call_webhooks(here, "UpdateWebhook", request, timeout_seconds=5.0)
    assert await names_of(tenant) == []
