"""Runs the hook service on a real database, with plugins that are real servers."""

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import aio
from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import add_HookHandlerServiceServicer_to_server
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, HookServiceStub
from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service, open_worker
from spawnmesh_hook.clients.dns_resolver import Resolve, resolve_with_system
from spawnmesh_hook.jobs.worker import Worker
from spawnmesh_hook.settings import HookSettings
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import HarnessClaim, TokenMinter

from tests.support import tenancy
from tests.support.hook.decisions import decision_of
from tests.support.hook.outbox import empty_outbox
from tests.support.hook.scripted_plugin import ScriptedPlugin
from tests.support.postgres.migrating import migrate_once

SPAWN = events.HOOK_KIND_BEFORE_SPAWN
COMPACTION = events.HOOK_KIND_BEFORE_COMPACTION
COMPACTED = events.HOOK_KIND_AFTER_COMPACTION
FINALIZE = events.HOOK_KIND_BEFORE_AGENT_FINALIZE
ENDED = events.HOOK_KIND_SUBAGENT_ENDED
MODEL = events.HOOK_KIND_BEFORE_MODEL_RESOLVE
PROMPT = events.HOOK_KIND_BEFORE_PROMPT_BUILD
TARGET, TOOL_CALL = events.HOOK_KIND_DELIVERY_TARGET, events.HOOK_KIND_BEFORE_TOOL_CALL
OPEN, CLOSED = pb.FAILURE_POLICY_OPEN, pb.FAILURE_POLICY_CLOSED
CONTENT, CONTROL, INJECTION = (
    pb.GRANT_CONVERSATION_ACCESS,
    pb.GRANT_FINALIZE_CONTROL,
    pb.GRANT_PROMPT_INJECTION,
)

DEAD_ENDPOINT = "grpc://127.0.0.1:1"


class Tenant:
    """Calls the service for one tenant, as its client, its run, or as another service."""

    def __init__(self, session: Peer, clients: TokenMinter, transcripts: TokenMinter) -> None:
        self.tenant_id = f"hook-{uuid.uuid4().hex[:12]}"
        self.is_ready = False
        self._session_numbers = count(1)
        self._session = session
        self._clients = clients
        self._transcripts = transcripts

    async def as_run(
        self,
        rpc: str,
        request: Any,
        timeout_seconds: float = 60.0,
        *,
        session_id: str = "ses_1",
        run_id: str = "run_1",
        harness: HarnessClaim | None = None,
    ) -> Any:
        minter = self._session.process.minter
        assert minter is not None
        stub = (
            self._stub() if hasattr(HookServiceServicer, rpc) else RunHookServiceStub(self._session.channel)
        )
        with use_token(minter.run_token(self.tenant_id, session_id, run_id, 1, 60, harness=harness)):
            return await self._session.unary(getattr(stub, rpc), request, timeout_seconds=timeout_seconds)

    def on(self, session: Peer) -> "Tenant":
        """Return the same tenant at another replica."""
        other = Tenant(session, self._clients, self._transcripts)
        other.tenant_id = self.tenant_id
        other.is_ready = self.is_ready
        other._session_numbers = self._session_numbers
        return other

    async def prepare(
        self, version: int, *, mask_secrets: bool = False, plugins: PluginLimits | None = None
    ) -> int:
        """Prepare the tenant as the session service does. Return the version that holds."""
        wanted = TranscriptSettings(mask_secrets=mask_secrets)
        with impersonate(self.tenant_id):
            version = await tenancy.prepare(self._session, version, transcripts=wanted, plugins=plugins)
        self.is_ready = True
        return version

    async def as_client(self, rpc: str, request: Any) -> Any:
        if rpc == "UpdatePlugin" and not self.is_ready:
            await self.prepare(1)
        with use_token(self._clients.client_token(self.tenant_id, "tester", 60)):
            return await self._session.unary(getattr(self._stub(), rpc), request, timeout_seconds=60.0)

    async def as_session(self, rpc: str, request: Any, timeout_seconds: float = 60.0) -> Any:
        with impersonate(self.tenant_id):
            return await self._session.unary(
                getattr(self._stub(), rpc), request, timeout_seconds=timeout_seconds
            )

    async def as_transcript(self, rpc: str, request: Any, timeout_seconds: float = 60.0) -> Any:
        with use_token(self._transcripts.service_token(self.tenant_id)):
            return await self._session.unary(
                getattr(self._stub(), rpc), request, timeout_seconds=timeout_seconds
            )

    async def register(
        self,
        name: str,
        endpoint: str,
        *hooks: "events.HookKind.ValueType",
        priority: int = 0,
        policy: "pb.FailurePolicy.ValueType" = pb.FAILURE_POLICY_UNSPECIFIED,
        grants: "Iterable[pb.Grant.ValueType]" = (),
        timeout: Duration | None = None,
        allow_unreachable: bool = True,
        **more: Any,
    ) -> pb.Plugin:
        plugin = pb.Plugin(
            name=name,
            endpoint=endpoint,
            hooks=hooks,
            priority=priority,
            failure_policy=policy,
            grants=(
                *grants,
                *((CONTROL,) if FINALIZE in hooks else ()),
                *((INJECTION,) if PROMPT in hooks else ()),
            ),
            timeout=timeout,
            **more,
        )
        request = pb.UpdatePluginRequest(plugin=plugin, allow_missing=True)
        request.allow_unreachable = allow_unreachable
        request.update_mask.paths.append("*")
        answer: pb.UpdatePluginResponse = await self.as_client("UpdatePlugin", request)
        return answer.plugin

    async def plugin_names(self) -> list[str]:
        listed = await self.as_client("ListPlugins", pb.ListPluginsRequest())
        return [plugin.name for plugin in listed.plugins]

    async def spawn(self, *, timeout_seconds: float = 60.0, **facts: Any) -> pb.DispatchBeforeSpawnResponse:
        """Dispatch for a new session, or repeat for the `session_id`: `ses_1`, `ses_2` and so on."""
        event = events.BeforeSpawnEvent(**{"session_id": f"ses_{next(self._session_numbers)}", **facts})
        request = pb.DispatchBeforeSpawnRequest(event=event)
        answer: pb.DispatchBeforeSpawnResponse = await self.as_session(
            "DispatchBeforeSpawn", request, timeout_seconds
        )
        return answer

    async def draft(
        self, key: str, *, run_id: str = "run_1", timeout_seconds: float = 60.0, **facts: Any
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        event = events.BeforeAgentFinalizeEvent(**{"session_id": "ses_1", "run_id": run_id, **facts})
        request = pb.DispatchBeforeAgentFinalizeRequest(event=event, request_id=key)
        answer: pb.DispatchBeforeAgentFinalizeResponse = await self.as_session(
            "DispatchBeforeAgentFinalize", request, timeout_seconds
        )
        return answer

    async def publish(self, *published: observed.ObservedEvent) -> int:
        """Publish the events. Return the number of queued deliveries."""
        request = pb.PublishEventsRequest(events=published)
        answer: pb.PublishEventsResponse = await self.as_session("PublishEvents", request)
        return answer.queued_count

    async def ended(
        self, event_key: str = "ended:1", *, session_id: str = "ses_1", run_id: str = "run_1"
    ) -> int:
        return await self.publish(ended(event_key, session_id=session_id, run_id=run_id))

    async def deliveries(
        self, session_id: str = "", page_size: int = 0, *, decision: str = "", **conditions: Any
    ) -> list[delivery_pb.Delivery]:
        request = pb.ListDeliveriesRequest(session_id=session_id, page_size=page_size, **conditions)
        if decision:
            request.decision = delivery_pb.DeliveryDecision.Value(f"DELIVERY_DECISION_{decision.upper()}")
        return list((await self.as_client("ListDeliveries", request)).deliveries)

    async def log(self) -> list[tuple[str, str]]:
        """Return plugin and decision of each call, oldest first."""
        return [(delivery.plugin, decision_of(delivery)) for delivery in reversed(await self.deliveries())]

    def _stub(self) -> HookServiceStub:
        return HookServiceStub(self._session.channel)


def ended(event_key: str, *, session_id: str = "ses_1", run_id: str = "run_1") -> observed.ObservedEvent:
    return observed.ObservedEvent(
        event_key=event_key,
        session_id=session_id,
        run_id=run_id,
        subagent_ended=observed.SubagentEndedEvent(outcome=END_OUTCOME_SUCCEEDED),
    )


class HookMesh:
    """Opens replicas, workers and plugins, and closes them with itself."""

    def __init__(self, stack: AsyncExitStack, database: ServiceDsn, keys: Path) -> None:
        self._stack = stack
        self._database = database
        self._keys = keys
        self._clients = TokenMinter("client", keys / "client.pem")
        self._transcripts = TokenMinter("transcript", keys / "transcript.pem")

    async def replica(self, **settings: Any) -> Peer:
        """Open another replica. Return the session service's connection to it."""
        return await self._stack.enter_async_context(hook_replica(self._database, self._keys, **settings))

    async def worker(self, **settings: Any) -> Worker:
        """Open a worker whose loops are not started."""
        chosen = hook_settings(self._database, self._keys, **settings)
        process = await self._stack.enter_async_context(start_process("hook", chosen))
        return await self._stack.enter_async_context(open_worker(process, chosen))

    def tenant(self, session: Peer) -> Tenant:
        return Tenant(session, self._clients, self._transcripts)

    async def plugin(
        self, *answers: Any, host: str = "127.0.0.1", address: str = "127.0.0.1"
    ) -> ScriptedPlugin:
        """Serve a plugin with these answers on a port of its own of the address, under this host."""
        plugin = ScriptedPlugin()
        if answers:
            plugin.says(*answers)
        settings = ProcessSettings(jwks_file=self._keys / "jwks.json", log_level="error")
        process = await self._stack.enter_async_context(start_process("plugin", settings))
        (port,) = free_ports(1)
        plugin.endpoint = f"grpc://{host}:{port}"
        server = build_server(process, plugin=plugin.endpoint)
        add_HookHandlerServiceServicer_to_server(plugin, server)
        await self._stack.enter_async_context(_serving(server, port, address))
        return plugin


def hook_settings(database: ServiceDsn, keys: Path, **settings: Any) -> HookSettings:
    """Return settings that allow loopback plugins unless `settings` override that."""
    given: dict[str, Any] = {
        "database_url": database.app,
        "jwks_file": keys / "jwks.json",
        "signing_key_file": keys / "hook.pem",
        "allow_private_endpoints": True,
        "allow_plain_webhooks": True,
        "log_level": "error",
        **settings,
    }
    return HookSettings(**given)


@asynccontextmanager
async def hook_replica(
    database: ServiceDsn, keys: Path, *, resolve: Resolve = resolve_with_system, **settings: Any
) -> AsyncIterator[Peer]:
    """Serve a replica. Give the session service's connection to it."""
    caller_settings = ProcessSettings(signing_key_file=keys / "session.pem", log_level="error")
    chosen = hook_settings(database, keys, **settings)
    async with (
        start_process("hook", chosen) as process,
        open_service(process, chosen, resolve) as server,
        _serving(server) as port,
        start_process("session", caller_settings) as session,
        open_peer(session, "hook", f"127.0.0.1:{port}") as peer,
    ):
        yield peer


@asynccontextmanager
async def open_mesh(database: ServiceDsn, keys: Path) -> AsyncIterator[HookMesh]:
    """Open a mesh on the migrated schema, with an empty outbox."""
    migrate_once(database.owner, "hook")
    await empty_outbox(database)
    async with AsyncExitStack() as stack:
        yield HookMesh(stack, database, keys)


@asynccontextmanager
async def _serving(server: aio.Server, port: int = 0, address: str = "127.0.0.1") -> AsyncIterator[int]:
    port = server.add_insecure_port(f"{address}:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@contextmanager
def refused(reason: Reason) -> Iterator[pytest.ExceptionInfo[MeshError]]:
    """Expect the block to raise a MeshError of the reason. Give it as `.value`."""
    with pytest.raises(MeshError) as caught:
        yield caught
    assert caught.value.reason is reason
