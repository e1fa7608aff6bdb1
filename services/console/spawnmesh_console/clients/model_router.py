"""Health of providers, explained routes and cooldowns, with every field of the contract."""

from datetime import UTC
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_client.pages import pages_of
from spawnmesh_client.view_of import enum_prefix

from spawnmesh_console.domain.cooldowns import CooldownView, ProviderView
from spawnmesh_console.domain.routes import RouteQuestion, RouteVerdict

_NO_SCOPE = routing_pb2.COOLDOWN_SCOPE_UNSPECIFIED
_SCOPES = {
    "MODEL": routing_pb2.COOLDOWN_SCOPE_MODEL,
    "CREDENTIAL": routing_pb2.COOLDOWN_SCOPE_CREDENTIAL,
    "PROVIDER": routing_pb2.COOLDOWN_SCOPE_PROVIDER,
}


async def provider_views(mesh: Mesh) -> list[ProviderView]:
    """Return the providers by name, with the cooldowns that concern the tenant of the mesh."""
    peer = mesh.wire.service("model-router")
    stub = ModelRouterServiceStub(peer.channel)
    pages = pages_of(peer, stub.ListProviderHealth, pb.ListProviderHealthRequest())
    return [_provider(one) async for page in pages for one in page.providers]


async def explained_route(mesh: Mesh, question: RouteQuestion) -> list[RouteVerdict]:
    """Return each candidate in order, without a call of a provider.

    Raises InvalidRequest UNKNOWN_MODEL.
    """
    blocks = [content.ContentBlock(text=content.Text(text=question.text or "?"))]
    if question.has_image:
        blocks.append(content.ContentBlock(image=content.Image(mime_type="image/png")))
    request = pb.GenerateRequest(
        model=question.model,
        messages=[content.Message(role=content.ROLE_USER, content=blocks)],
        tools=[generation_pb2.ToolDeclaration(name="any")] if question.has_tools else (),
    )
    if question.is_only_these:
        request.fallbacks.models.extend(question.fallbacks)
        request.fallbacks.SetInParent()
    else:
        request.fallback_models.extend(question.fallbacks)
    peer = mesh.wire.service("model-router")
    stub = ModelRouterServiceStub(peer.channel)
    answer = await peer.unary(stub.ExplainRoute, pb.ExplainRouteRequest(request=request))
    return [_verdict(one) for one in answer.candidates]


async def clear_cooldown(mesh: Mesh, *, scope: str, target: str, tenant_id: str) -> None:
    """End a cooldown for a tenant; with an empty one, for all of them.

    Raises InvalidRequest for an unknown scope, and NotFound for a target that is not configured.
    """
    request = pb.ClearCooldownRequest(scope=_SCOPES.get(scope, _NO_SCOPE), target=target, tenant_id=tenant_id)
    peer = mesh.wire.service("model-router")
    await peer.unary(ModelRouterServiceStub(peer.channel).ClearCooldown, request)


def _provider(one: routing_pb2.ProviderHealth) -> ProviderView:
    return ProviderView(
        one.provider,
        one.credential_count,
        one.readable_credential_count,
        tuple(
            CooldownView(
                _word(cooldown, "scope"),
                cooldown.target,
                cooldown.start_time.ToDatetime(UTC),
                cooldown.until_time.ToDatetime(UTC),
                _word(cooldown, "reason"),
                cooldown.failure_count,
                cooldown.tenant_id,
            )
            for cooldown in one.cooldowns
        ),
    )


def _verdict(one: generation_pb2.CandidateVerdict) -> RouteVerdict:
    return RouteVerdict(
        one.model,
        _word(one, "verdict"),
        _word(one, "reason"),
        one.cooling_until_time.ToDatetime(UTC) if one.HasField("cooling_until_time") else None,
        one.detail,
        _word(one, "images"),
        is_of_tenant=one.cooling_audience == generation_pb2.COOLDOWN_AUDIENCE_TENANT,
    )


def _word(message: Any, name: str) -> str:
    """Return the value of a field without its enum's name; empty for none, and for a newer one."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum.values_by_number.get(getattr(message, name))
    return value.name.removeprefix(enum_prefix(enum)) if value is not None and value.number else ""
