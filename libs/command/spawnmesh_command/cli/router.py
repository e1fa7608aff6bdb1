"""Commands for models: list and explain them, show provider health, and clear cooldowns."""

from collections.abc import Sequence
from datetime import UTC
from typing import Annotated, Any

import typer
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2, routing_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_client.pages import pages_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.failures import failures
from spawnmesh_command.cli.run import AsJson, call_rpc, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of, when
from spawnmesh_command.cli.thinking import Thinking, level_name, thinking_level

_SCOPES = {
    "model": routing_pb2.COOLDOWN_SCOPE_MODEL,
    "credential": routing_pb2.COOLDOWN_SCOPE_CREDENTIAL,
    "provider": routing_pb2.COOLDOWN_SCOPE_PROVIDER,
}


def add_commands(app: typer.Typer) -> None:
    """Add `router models|explain|health|failures|clear`."""
    router = typer.Typer(no_args_is_help=True, help="Models, their health and cooldowns.")
    for command in (models, explain, health, failures, clear):
        router.command()(command)
    app.add_typer(router, name="router")


def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can be requested, and their capabilities."""

    async def body(mesh: WireMesh) -> list[routing_pb2.ModelInfo]:
        router = mesh.service("model-router")
        stub = ModelRouterServiceStub(router.channel)
        pages = pages_of(router, stub.ListModels, pb.ListModelsRequest())
        return [model async for page in pages for model in page.models]

    listed = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json({"models": [value_of(model) for model in listed]})
    else:
        print_table(
            ("model", "kind", "reads", "writes", "can", "thinking", "aliases"), map(_model_row, listed)
        )


def explain(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            autocompletion=completion.models,
            help="`provider/model` or an alias; else the primary.",
        ),
    ] = "",
    fallback: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", autocompletion=completion.models, help="A fallback; may be repeated."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Only MODEL.")] = False,
    image: Annotated[bool, typer.Option("--image", help="The request has an image.")] = False,
    tools: Annotated[bool, typer.Option("--tools", help="The request has tools.")] = False,
    thinking: Thinking = "",
    as_json: AsJson = False,
) -> None:
    """Show which models would be called now, in order, and which would not and why.

    No model is called.
    """
    content = [message_pb2.ContentBlock(text=message_pb2.Text(text="?"))]
    if image:
        content.append(message_pb2.ContentBlock(image=message_pb2.Image(mime_type="image/png")))
    request = pb.GenerateRequest(
        model=model,
        fallback_models=fallback or (),
        strict=strict,
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content=content)],
        tools=[generation_pb2.ToolDeclaration(name="any")] if tools else (),
        thinking=thinking_level(thinking),
    )

    async def body(mesh: WireMesh) -> pb.ExplainRouteResponse:
        router = mesh.service("model-router")
        stub = ModelRouterServiceStub(router.channel)
        return await router.unary(stub.ExplainRoute, pb.ExplainRouteRequest(request=request))

    explained = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(explained))
    else:
        columns = ("model", "verdict", "reason", "until", "for", "images", "thinking", "detail")
        print_table(columns, map(_candidate_row, explained.candidates))


def health(
    context: typer.Context,
    all_tenants: Annotated[
        bool,
        typer.Option("--all-tenants", help="With the cooldowns of each tenant. Needs an operator's token."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every provider with its credentials, and its cooldowns for this tenant and for all."""

    async def body(mesh: WireMesh) -> list[routing_pb2.ProviderHealth]:
        router = mesh.service("model-router")
        stub = ModelRouterServiceStub(router.channel)
        pages = pages_of(router, stub.ListProviderHealth, pb.ListProviderHealthRequest())
        return [provider async for page in pages for provider in page.providers]

    listed = with_mesh(context, body, as_json=as_json, admin=all_tenants)
    if as_json:
        print_json({"providers": [value_of(provider) for provider in listed]})
    else:
        columns = ("provider", "credentials", "rest", "for", "since", "until", "reason", "failures")
        print_table(columns, (row for provider in listed for row in _health_rows(provider)))


def clear(
    context: typer.Context,
    scope: Annotated[str, typer.Argument(metavar="SCOPE", help="model, credential or provider.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="`provider/model`, `provider/N` for its N-th credential, `provider/N/model` for that"
            " credential at one model, `provider`.",
        ),
    ],
    tenant: Annotated[
        str, typer.Option(metavar="TENANT", help="Only the cooldown of this tenant; else all of them.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Clear a cooldown. Needs an operator's token."""
    if scope.lower() not in _SCOPES:
        raise typer.BadParameter(f"unknown scope; known are {', '.join(_SCOPES)}")
    request = pb.ClearCooldownRequest(scope=_SCOPES[scope.lower()], target=target, tenant_id=tenant)
    answer = call_rpc(
        "model-router", ModelRouterServiceStub, context, "ClearCooldown", request, as_json=as_json, admin=True
    )
    if as_json:
        print_json(value_of(answer))
    else:
        print(f"{target} may be called again" if answer.was_cooling else f"{target} had no cooldown")


def _kind_of(model: routing_pb2.ModelInfo) -> str:
    kind = routing_pb2.ProviderKind.Name(model.provider_kind).removeprefix("PROVIDER_KIND_").lower()
    api = routing_pb2.ModelApi.Name(model.api).removeprefix("MODEL_API_").lower()
    return f"{kind} {api}" if model.api else kind


def _model_row(model: routing_pb2.ModelInfo) -> Sequence[str]:
    can = [name for name, able in (("images", model.vision), ("tools", model.tools)) if able]
    return (
        f"{model.model}{' (primary)' if model.is_primary else ''}",
        _kind_of(model),
        f"{model.context_window_token_count:,}",
        f"{model.max_output_token_count:,}",
        ", ".join(can),
        ", ".join(level_name(level) for level in model.thinking_levels),
        ", ".join(model.aliases),
    )


def _candidate_row(candidate: generation_pb2.CandidateVerdict) -> Sequence[str]:
    return (
        candidate.model,
        _short(generation_pb2.Verdict, candidate.verdict),
        _short(generation_pb2.FailoverReason, candidate.reason),
        when(candidate.cooling_until_time),
        _audience(candidate.cooling_audience),
        _short(generation_pb2.ImageOutcome, candidate.images),
        level_name(candidate.thinking),
        candidate.detail,
    )


def _health_rows(provider: routing_pb2.ProviderHealth) -> list[Sequence[str]]:
    """Return a row for each cooldown or counted failure; one row if there is none."""
    credentials = f"{provider.readable_credential_count} of {provider.credential_count} readable"
    if not provider.cooldowns:
        return [(provider.provider, credentials, "nothing", "", "", "", "", "")]
    now = utc_now()
    return [
        (
            provider.provider,
            credentials,
            f"{_short(routing_pb2.CooldownScope, rest.scope)} {rest.target}",
            f"{_audience(rest.audience)} {rest.tenant_id}".rstrip(),
            when(rest.start_time),
            when(rest.until_time) if rest.until_time.ToDatetime(tzinfo=UTC) > now else "over",
            _short(generation_pb2.FailoverReason, rest.reason),
            str(rest.failure_count),
        )
        for rest in provider.cooldowns
    ]


def _audience(audience: generation_pb2.CooldownAudience.ValueType) -> str:
    return _short(generation_pb2.CooldownAudience, audience).replace("_", " ")


def _short(enum: Any, value: int) -> str:
    """Return the value's name without its enum's, in lower case; empty for the unspecified
    value.
    """
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    return str(enum.Name(value)).removeprefix(prefix).lower() if value else ""
