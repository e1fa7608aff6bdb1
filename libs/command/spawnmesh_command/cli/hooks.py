"""Commands for plugins: list and register them, show their calls, and serve one."""

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from spawnmesh.hook.v1 import delivery_pb2 as delivery_pb
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_client.pages import pages_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now
from spawnmesh_plugin.serving import load_handlers, serve
from spawnmesh_plugin.settings import PluginSettings

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.arguments import PluginName
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.hook_relay import relay
from spawnmesh_command.cli.plugin_registration import hook_name, print_plugins, register, update
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, call_rpc, malformed, reported, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of, when

_TRY_SECONDS = 120.0
_call = partial(call_rpc, "hook", HookServiceStub)
_DECISION = "DELIVERY_DECISION_"
_DECISIONS = [name.removeprefix(_DECISION).lower() for name in delivery_pb.DeliveryDecision.keys()[1:]]
_TEN_YEARS = 10 * 365 * 24 * 60


def add_commands(app: typer.Typer) -> None:
    """Add `hooks list|register|update|pause|resume|delete|log|test|relay|serve`."""
    hooks = typer.Typer(no_args_is_help=True, help="Plugins that review what runs are about to do.")
    for command in (register, update, pause, resume, delete, log, relay):
        hooks.command()(command)
    hooks.command("list")(list_plugins)
    hooks.command("test")(try_plugin)
    hooks.command("serve")(serve_module)
    app.add_typer(hooks, name="hooks")


def list_plugins(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tenant's plugins and the operator's plugins for it, highest priority first."""

    async def body(mesh: WireMesh) -> list[pb.Plugin]:
        hook = mesh.service("hook")
        pages = pages_of(hook, HookServiceStub(hook.channel).ListPlugins, pb.ListPluginsRequest())
        return [plugin async for page in pages for plugin in page.plugins]

    plugins = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json({"plugins": [value_of(plugin) for plugin in plugins]})
    else:
        print_plugins(plugins)


def pause(context: typer.Context, name: PluginName, as_json: AsJson = False) -> None:
    """Stop calling a plugin until it is resumed."""
    answer = _call(context, "PausePlugin", pb.PausePluginRequest(name=name), as_json=as_json)
    _print_one(answer.plugin, as_json=as_json)


def resume(context: typer.Context, name: PluginName, as_json: AsJson = False) -> None:
    """Call a plugin again at once, whatever failed before."""
    answer = _call(context, "ResumePlugin", pb.ResumePluginRequest(name=name), as_json=as_json)
    _print_one(answer.plugin, as_json=as_json)


def delete(context: typer.Context, name: PluginName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a plugin with its pending events, if it exists."""
    confirm(f"Delete the plugin {name}?", yes=yes)
    _call(context, "DeletePlugin", pb.DeletePluginRequest(name=name), as_json=as_json)
    if as_json:
        print_json({"deleted": name})


def log(
    context: typer.Context,
    session: Annotated[
        str,
        typer.Option(
            metavar="SESSION_ID", autocompletion=completion.sessions, help="Only calls of this session."
        ),
    ] = "",
    run: Annotated[str, typer.Option(help="Only calls of this run.")] = "",
    plugin: Annotated[str, typer.Option(help="Only calls of this plugin.")] = "",
    decision: Annotated[str, typer.Option(help=f"Only this decision: {', '.join(_DECISIONS)}.")] = "",
    since: Annotated[
        float | None, typer.Option(min=0, max=_TEN_YEARS, help="Only calls of the last minutes.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the calls of plugins, newest first."""
    if decision and decision not in _DECISIONS:
        raise typer.BadParameter(f"unknown decision; known are {', '.join(_DECISIONS)}")
    request = pb.ListDeliveriesRequest(session_id=session, run_id=run, plugin=plugin, page_size=limit)
    if decision:
        request.decision = delivery_pb.DeliveryDecision.Value(_DECISION + decision.upper())
    if since is not None:
        request.start_time.CopyFrom(timestamp_of(utc_now() - timedelta(minutes=since)))

    async def body(mesh: WireMesh) -> list[delivery_pb.Delivery]:
        hook = mesh.service("hook")
        stub = HookServiceStub(hook.channel)
        found: list[delivery_pb.Delivery] = []
        while True:  # A page can be empty although more follow.
            page = await hook.unary(stub.ListDeliveries, request)
            found += page.deliveries
            if not page.next_page_token or len(found) >= limit:
                return found[:limit]
            request.page_token = page.next_page_token

    _print_deliveries(with_mesh(context, body, as_json=as_json), as_json=as_json)


def try_plugin(context: typer.Context, name: PluginName, as_json: AsJson = False) -> None:
    """Call a plugin once for each of its hooks with made-up facts.

    The exit code is 1 if a call fails.
    """
    request = pb.TestPluginRequest(name=name)
    answer = _call(context, "TestPlugin", request, as_json=as_json, timeout_seconds=_TRY_SECONDS)
    deliveries = list(answer.deliveries)
    _print_deliveries(deliveries, as_json=as_json)
    if any(one.error for one in deliveries):
        raise typer.Exit(1)


def serve_module(
    context: typer.Context,
    module: Annotated[str, typer.Argument(metavar="MODULE", help="For example my_plugin, or a dotted name.")],
    listen: Annotated[str, typer.Option(help="host:port.")] = "127.0.0.1:7000",
    jwks: Annotated[
        Path | None,
        typer.Option(help="The mesh's public keys; else SPAWNMESH_PLUGIN_JWKS_FILE or _JWKS_URL."),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="grpc://host:port, exactly as it is registered; else that of --listen.")
    ] = "",
    for_tenant: Annotated[
        list[str] | None, typer.Option(help="A tenant that it serves; may be repeated.")
    ] = None,
    for_all_tenants: Annotated[
        bool, typer.Option("--for-all-tenants", help="Serve every tenant, as a plugin of the operator does.")
    ] = False,
) -> None:
    """Serve the handlers of a Python module as a plugin, until Ctrl-C.

    Only the mesh with these keys can call it, for these tenants.
    """
    given: dict[str, Any] = {"listen": listen, "jwks_file": jwks, "endpoint": endpoint}
    given |= {"tenants": for_tenant, "all_tenants": for_all_tenants}
    with reported(as_json=False):
        settings = _plugin_settings({name: value for name, value in given.items() if value})
    if (missing := _missing(settings)) is not None:
        print_error(missing)
        raise typer.Exit(2)
    try:
        handlers = load_handlers(module)
    except (ImportError, ValueError) as error:
        print_error(f"{module}: {error}")
        raise typer.Exit(1) from None

    def ready(port: int) -> None:
        address = f"{listen.rpartition(':')[0]}:{port}"
        print(
            f"serving {', '.join(handlers.hooks)} on {address}, as {settings.registered_endpoint}", flush=True
        )

    asyncio.run(serve(handlers, settings, ready))


def _plugin_settings(given: dict[str, Any]) -> PluginSettings:
    try:
        return PluginSettings(**given)
    except (ValidationError, SettingsError) as error:
        raise malformed(error, "SPAWNMESH_PLUGIN_", "listen", "endpoint") from None


def _missing(settings: PluginSettings) -> str | None:
    """Return what the settings lack to serve; None if they are complete."""
    if settings.jwks_file is None and settings.jwks_url is None:
        return "say whose calls to answer: --jwks FILE, the file jwks.json of the mesh's keys"
    if bool(settings.tenants) == settings.all_tenants:
        return "say for whom: --for-tenant ID for each tenant that is answered, or else --for-all-tenants"
    if not settings.registered_endpoint:
        return "say where the mesh reaches it: --endpoint grpc://host:port, exactly as it is registered"
    return None


def _print_one(plugin: pb.Plugin, *, as_json: bool) -> None:
    if as_json:
        print_json(value_of(plugin))
    else:
        print_plugins([plugin])


def _print_deliveries(deliveries: list[delivery_pb.Delivery], *, as_json: bool) -> None:
    if as_json:
        print_json({"deliveries": [value_of(one) for one in deliveries]})
        return
    print_table(
        ("plugin", "when", "hook", "decision", "ms", "try", "run", "error"),
        (
            (
                one.plugin,
                when(one.start_time),
                hook_name(one.hook),
                delivery_pb.DeliveryDecision.Name(one.decision).removeprefix(_DECISION).lower(),
                f"{one.latency.ToMicroseconds() / 1000:.1f}",
                str(one.attempt),
                one.run_id or one.session_id,
                one.error,
            )
            for one in deliveries
        ),
    )
