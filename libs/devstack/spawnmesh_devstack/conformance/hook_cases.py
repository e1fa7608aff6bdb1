"""Handlers for the hook areas: plugins that give the answers of a case, registered for the case's
own tenant.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.decision_pb2 import Continue, FinalizeDecision
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_AGENT_FINALIZE
from spawnmesh.hook.v1.hook_handler_service_pb2 import (
    HandleBeforeAgentFinalizeRequest,
    HandleBeforeAgentFinalizeResponse,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub

from spawnmesh_devstack.conformance.cases import BadCase, list_of, object_of
from spawnmesh_devstack.conformance.mesh import MeshAccess
from spawnmesh_devstack.conformance.tenants import create_tenant, delete_tenant, prepare_tenant

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceAsyncStub

CALL_SECONDS = 30.0
_HANDLER = ("name", "priority", "result", "failure_policy", "note")
_RESULT = ("action", "reason", "retry", "throws", "hangs")
_RETRY = ("instruction", "idempotency_key", "idempotencyKey", "max_attempts", "maxAttempts")
_SERVICE = "spawnmesh.hook.v1.HookHandlerService"
_HANG_SECONDS = 1.0
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Handler:
    """A plugin of a case. `decision` is None if it raises; one that `hangs` answers after its
    time-out.
    """

    plugin: pb.Plugin
    decision: FinalizeDecision | None
    hangs: bool


def handlers_of(value: Any) -> list[Handler]:
    """Return the handlers, named `handler-1` and so on if the case gives no names. Raises
    BadCase.
    """
    handlers = []
    for place, item in enumerate(list_of(value, "handlers"), start=1):
        what = f"handlers[{place - 1}]"
        given = object_of(item, what, _HANDLER)
        priority = given.get("priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _MAX_INT32:
            raise BadCase(f"{what}.priority is no such number")
        result = given.get("result")
        hangs = isinstance(result, dict) and bool(result.get("hangs"))
        plugin = pb.Plugin(
            name=str(given.get("name", f"handler-{place}")),
            hooks=[HOOK_KIND_BEFORE_AGENT_FINALIZE],
            priority=priority,
            failure_policy=_policy(given.get("failure_policy"), what),
            grants=[pb.GRANT_FINALIZE_CONTROL, pb.GRANT_CONVERSATION_ACCESS],
        )
        if hangs:
            plugin.timeout.FromMilliseconds(int(_HANG_SECONDS * 500))
        handlers.append(Handler(plugin, _decision(result, f"{what}.result"), hangs))
    return handlers


@dataclass(frozen=True, slots=True)
class HookTenant:
    """A tenant that has exactly the plugins of the case."""

    mesh: MeshAccess
    tenant_id: str

    async def create(self) -> None:
        """Create the tenant, or prepare it at the hook service if there are no keys of a mesh."""
        if self.mesh.signers is None:
            with self.mesh.as_session(self.tenant_id):
                await prepare_tenant(self.mesh, "hook")
        else:
            with self.mesh.as_operator():
                await create_tenant(self.mesh, self.tenant_id)

    async def delete(self) -> None:
        """Begin to delete the tenant, if it was created."""
        if self.mesh.signers is not None:
            with self.mesh.as_operator():
                await delete_tenant(self.mesh, self.tenant_id)

    async def as_client(self, rpc: str, request: Any) -> Any:
        """Make the calls in the block as a client of the tenant."""
        with self.mesh.as_client(self.tenant_id):
            return await self._call(rpc, request)

    async def as_session(self, rpc: str, request: Any) -> Any:
        """Make the calls in the block as the session service."""
        with self.mesh.as_session(self.tenant_id):
            return await self._call(rpc, request)

    async def deliveries(self) -> list[dict[str, str]]:
        """Return the called plugins with their decisions, in order."""
        listed: pb.ListDeliveriesResponse = await self.as_client("ListDeliveries", pb.ListDeliveriesRequest())
        return [
            {
                "plugin": one.plugin,
                "decision": delivery_pb.DeliveryDecision.Name(one.decision)
                .removeprefix("DELIVERY_DECISION_")
                .lower(),
            }
            for one in reversed(listed.deliveries)
        ]

    async def _call(self, rpc: str, request: Any) -> Any:
        peer = self.mesh.peers["hook"]
        stub: HookServiceAsyncStub = HookServiceStub(peer.channel)
        return await peer.unary(getattr(stub, rpc), request, timeout_seconds=CALL_SECONDS)


@asynccontextmanager
async def open_hook_tenant(mesh: MeshAccess, handlers: Sequence[Handler]) -> AsyncIterator[HookTenant]:
    """Serve and register the handlers in order, and remove them at the end of the block."""
    tenant = HookTenant(mesh, f"conformance-{uuid.uuid4().hex[:12]}")
    await tenant.create()
    async with AsyncExitStack() as exits:
        exits.push_async_callback(tenant.delete)
        for handler in handlers:
            handler.plugin.endpoint = await exits.enter_async_context(_served(handler))
            await tenant.as_client(
                "UpdatePlugin", pb.UpdatePluginRequest(allow_missing=True, plugin=handler.plugin)
            )
            exits.push_async_callback(
                tenant.as_client, "DeletePlugin", pb.DeletePluginRequest(name=handler.plugin.name)
            )
        yield tenant


@asynccontextmanager
async def _served(handler: Handler) -> AsyncIterator[str]:
    async def handle(request: Any, context: Any) -> HandleBeforeAgentFinalizeResponse:
        if handler.hangs:
            await asyncio.sleep(_HANG_SECONDS)
        if handler.decision is None:
            await context.abort(grpc.StatusCode.INTERNAL, "the handler throws")
        return HandleBeforeAgentFinalizeResponse(decision=handler.decision)

    method = grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=HandleBeforeAgentFinalizeRequest.FromString,
        response_serializer=HandleBeforeAgentFinalizeResponse.SerializeToString,
    )
    methods = {"HandleBeforeAgentFinalize": method}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]  # Not in the stubs.
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _policy(value: Any, what: str) -> "pb.FailurePolicy.ValueType":
    policies = {
        None: pb.FAILURE_POLICY_UNSPECIFIED,
        "open": pb.FAILURE_POLICY_OPEN,
        "closed": pb.FAILURE_POLICY_CLOSED,
    }
    key = value.lower() if isinstance(value, str) else value
    if key not in policies:
        raise BadCase(f"{what}.failure_policy is neither OPEN nor CLOSED")
    return policies[key]


def _decision(result: Any, what: str) -> FinalizeDecision | None:
    """Return the decision as a plugin would write it. None is no objection; a decision that no
    plugin may give becomes an answer without a decision.
    """
    if result is None:
        return _continue()
    if isinstance(result, str):
        result = {"action": result}
    if not isinstance(result, dict) or set(result) - set(_RESULT):
        return FinalizeDecision()
    if result.get("throws"):
        return None
    retry = object_of(result.get("retry") or {}, f"{what}.retry", _RETRY)
    reason = result.get("reason") or retry.get("instruction") or ""
    match result.get("action"):
        case "continue":
            return _continue()
        case "revise":
            decision = FinalizeDecision()
            decision.revise.SetInParent()
            decision.revise.reason = reason if isinstance(reason, str) else ""
            decision.revise.objection_key = str(retry.get("idempotency_key", retry.get("idempotencyKey", "")))
            decision.revise.max_attempts = int(retry.get("max_attempts", retry.get("maxAttempts", 0)))
            return decision
        case "finalize":
            decision = FinalizeDecision()
            decision.finalize.SetInParent()
            decision.finalize.reason = reason if isinstance(reason, str) else ""
            return decision
        case _:
            return FinalizeDecision()


def _continue() -> FinalizeDecision:
    kind: dict[str, Any] = {"continue": Continue()}  # a keyword of Python
    return FinalizeDecision(**kind)
