"""The commands `hooks register` and `hooks update`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.arguments import PluginName
from spawnmesh_command.cli.numbers import INT32_MAX
from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of

_CHANGEABLE = (
    "endpoint",
    "hooks",
    "priority",
    "grants",
    "timeout",
    "failure_policy",
    "max_wait",
    "max_concurrent_calls",
)


def register(
    context: typer.Context,
    name: PluginName,
    endpoint: Annotated[str, typer.Argument(help="grpc://host:port, or https://host/path of a webhook.")],
    hook: Annotated[list[str], typer.Option(help="For example before_agent_finalize; may be repeated.")],
    priority: Annotated[int, typer.Option(min=-INT32_MAX, max=INT32_MAX, help="Higher is called first.")] = 0,
    grant: Annotated[
        list[str] | None, typer.Option(help="conversation_access, finalize_control or prompt_injection.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, max=600, help="Timeout in seconds.")] = 15.0,
    policy: Annotated[
        str, typer.Option(help="The effect of its failure: open or closed; else the default of its hooks.")
    ] = "",
    max_wait: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=86400, help="Seconds that a run waits for its answer; else until its deadline."
        ),
    ] = None,
    max_concurrent_calls: Annotated[
        int, typer.Option(min=1, max=1000, help="Concurrent calls, in each replica of the service.")
    ] = 16,
    allow_unreachable: Annotated[
        bool, typer.Option("--allow-unreachable", help="Do not require that it answers yet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register a plugin, or replace the one with that name."""
    plugin = _plugin(name, endpoint, hook, priority, grant, timeout, policy, max_wait, max_concurrent_calls)
    request = pb.UpdatePluginRequest(
        plugin=plugin,
        update_mask=FieldMask(paths=[EVERY_FIELD]),
        allow_missing=True,
        allow_unreachable=allow_unreachable,
    )
    _write(context, request, as_json=as_json)


def update(
    context: typer.Context,
    name: PluginName,
    endpoint: Annotated[
        str | None, typer.Option(help="grpc://host:port, or https://host/path of a webhook.")
    ] = None,
    hook: Annotated[list[str] | None, typer.Option(help="Replaces all its hooks; may be repeated.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=-INT32_MAX, max=INT32_MAX, help="Higher is called first.")
    ] = None,
    grant: Annotated[list[str] | None, typer.Option(help="Replaces all its grants; may be repeated.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, max=600, help="Timeout in seconds.")] = None,
    policy: Annotated[str | None, typer.Option(help="The effect of its failure: open or closed.")] = None,
    max_wait: Annotated[
        float | None, typer.Option(min=0.001, max=86400, help="Seconds that a run waits for its answer.")
    ] = None,
    max_concurrent_calls: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Concurrent calls, in each replica of the service.")
    ] = None,
    resets: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="FIELD", help="A field to reset, such as grants; may be repeated."),
    ] = None,
    etag: Annotated[str, typer.Option(help="Only if the plugin still has this etag.")] = "",
    allow_unreachable: Annotated[
        bool, typer.Option("--allow-unreachable", help="Do not require that it answers yet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change what is given of a plugin, and nothing else. `hooks list --json` prints etags."""
    given = (endpoint, hook or None, priority, grant or None, timeout, policy, max_wait, max_concurrent_calls)
    paths = [field for field, value in zip(_CHANGEABLE, given, strict=True) if value is not None]
    if not paths and not resets:
        raise typer.BadParameter("nothing to change")
    if twice := set(paths).intersection(resets or ()):
        raise typer.BadParameter(f"{', '.join(sorted(twice))} is given and reset", param_hint="--reset")
    plugin = _plugin(
        name,
        endpoint or "",
        hook or (),
        priority or 0,
        grant,
        timeout,
        policy or "",
        max_wait,
        max_concurrent_calls or 0,
    )
    plugin.etag = etag
    request = pb.UpdatePluginRequest(
        plugin=plugin,
        update_mask=FieldMask(paths=[*paths, *(resets or ())]),
        allow_unreachable=allow_unreachable,
    )
    _write(context, request, as_json=as_json)


def _plugin(
    name: str,
    endpoint: str,
    hooks: Sequence[str],
    priority: int,
    grants: Sequence[str] | None,
    timeout: float | None,
    policy: str,
    max_wait: float | None,
    max_concurrent_calls: int,
) -> pb.Plugin:
    plugin = pb.Plugin(
        name=name,
        endpoint=endpoint,
        hooks=[_value(HookKind, "HOOK_KIND_", one, "hook") for one in hooks],
        priority=priority,
        failure_policy=_value(pb.FailurePolicy, "FAILURE_POLICY_", policy, "policy")
        if policy
        else pb.FAILURE_POLICY_UNSPECIFIED,
        grants=[_value(pb.Grant, "GRANT_", one, "grant") for one in grants or ()],
        max_concurrent_calls=max_concurrent_calls,
    )
    if timeout is not None:
        plugin.timeout.FromTimedelta(timedelta(seconds=timeout))
    if max_wait is not None:
        plugin.max_wait.FromTimedelta(timedelta(seconds=max_wait))
    return plugin


def _write(context: typer.Context, request: pb.UpdatePluginRequest, *, as_json: bool) -> None:
    async def body(mesh: WireMesh) -> pb.UpdatePluginResponse:
        hooks = mesh.service("hook")
        return await hooks.unary(HookServiceStub(hooks.channel).UpdatePlugin, request)

    answer = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(answer))
        return
    print_plugins([answer.plugin])
    if answer.webhook_secret:
        print(f"its calls are signed with {answer.webhook_secret}")


def print_plugins(plugins: list[pb.Plugin]) -> None:
    print_table(
        ("plugin", "priority", "state", "policy", "hooks", "endpoint"),
        (
            (
                one.name,
                str(one.priority),
                "paused" if one.paused else "bundled" if one.bundled else "active",
                pb.FailurePolicy.Name(one.failure_policy).removeprefix("FAILURE_POLICY_").lower(),
                ", ".join(hook_name(hook) for hook in one.hooks),
                one.endpoint,
            )
            for one in plugins
        ),
    )


def hook_name(kind: "HookKind.ValueType") -> str:
    return HookKind.Name(kind).removeprefix("HOOK_KIND_").lower()


def _value(enum: Any, prefix: str, name: str, option: str) -> Any:
    """Return the value of a contract's enum by its name in any case.

    End the command for an unknown name, and for the unspecified value.
    """
    known = {one.removeprefix(prefix): value for one, value in enum.items() if value}
    wanted = name.upper().replace("-", "_")
    if wanted not in known:
        raise typer.BadParameter(f"unknown {option}; known are {', '.join(known).lower()}")
    return known[wanted]
