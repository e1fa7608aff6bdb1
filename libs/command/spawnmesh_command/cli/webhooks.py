"""Commands for webhooks, which are sent the events of the tenant."""

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh.hook.v1 import webhook_service_pb2 as rpc
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_client.pages import paged
from spawnmesh_client.webhook_views import EVENT_TYPES, event_type_number, event_type_numbers
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import NotFound

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.arguments import WebhookName
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.durations import bounded_seconds
from spawnmesh_command.cli.lists import Limit, print_list
from spawnmesh_command.cli.run import AsJson, call_rpc, with_mesh
from spawnmesh_command.cli.show import print_json, value_of, when
from spawnmesh_command.cli.webhook_text import (
    STATE_PREFIX,
    attempt_line,
    print_deliveries,
    print_webhook,
    print_webhooks,
    types_text,
)

_REACH_SECONDS = 60.0
_WEEK_SECONDS = 7 * 86_400
_LONGEST_SECONDS = 3650 * 86_400
_PAGE = 1000
_call = partial(call_rpc, "hook", WebhookServiceStub)
_STATES = [name.removeprefix(STATE_PREFIX).lower() for name in pb.WebhookDeliveryState.keys()[1:]]
_KEEP = "keep it where the receiver finds it, and nowhere else"

_URL = "https://host[:port]/path."
_TYPES = f"Of these, with commas: {', '.join(EVENT_TYPES)}"
_TIMEOUT = "Of a request: 1s to 30s."
_ETAG = "Only if the webhook still has this etag."

AllowUnreachable = Annotated[
    bool, typer.Option("--allow-unreachable", help="Do not require that it answers yet.")
]


def add_commands(app: typer.Typer) -> None:
    """Add `webhook put|update|list|get|pause|resume|delete|rotate|test|deliveries|replay`."""
    webhook = typer.Typer(no_args_is_help=True, help="Addresses outside that are sent events.")
    webhook.command()(put)
    webhook.command("update")(update_webhook)
    webhook.command("list")(list_webhooks)
    webhook.command("get")(get_webhook)
    webhook.command("pause")(pause_webhook)
    webhook.command("resume")(resume_webhook)
    webhook.command("delete")(delete_webhook)
    webhook.command("rotate")(rotate_secret)
    webhook.command("test")(try_webhook)
    webhook.command("deliveries")(list_deliveries)
    webhook.command("replay")(replay)
    app.add_typer(webhook, name="webhook")


def put(
    context: typer.Context,
    name: WebhookName,
    url: Annotated[str, typer.Option(metavar="URL", help=_URL)],
    events: Annotated[str, typer.Option(metavar="TYPES", help=f"{_TYPES}. Else all.")] = "",
    timeout: Annotated[str, typer.Option(metavar="TIME", help=_TIMEOUT)] = "15s",
    etag: Annotated[str, typer.Option(help=_ETAG)] = "",
    allow_unreachable: AllowUnreachable = False,
    as_json: AsJson = False,
) -> None:
    """Create a webhook, or replace the one with that name, and print the secret of its messages."""
    webhook = pb.Webhook(
        name=name,
        url=url,
        event_types=_known(event_type_numbers, _split(events) if events else [], "--events"),
        timeout=_timeout_of(timeout),
        etag=etag,
    )
    request = rpc.UpdateWebhookRequest(
        webhook=webhook,
        update_mask=FieldMask(paths=[EVERY_FIELD]),
        allow_missing=True,
        allow_unreachable=allow_unreachable,
    )

    async def body(mesh: WireMesh) -> tuple[rpc.UpdateWebhookResponse, Sequence[int]]:
        peer = mesh.service("hook")
        stub = WebhookServiceStub(peer.channel)
        before: Sequence[int] = ()
        if not events:
            with suppress(NotFound):
                current = await peer.unary(stub.GetWebhook, rpc.GetWebhookRequest(name=name))
                before = current.webhook.event_types
        written = await peer.unary(stub.UpdateWebhook, request, timeout_seconds=_REACH_SECONDS)
        return written, before

    answer, before = with_mesh(context, body, as_json=as_json)
    if as_json:
        print_json(value_of(answer))
        return
    print_webhook(answer.webhook)
    if before:
        print(f"it was sent {types_text(before)} alone, and is sent all types from now on")
    print(f"its messages are signed with {answer.secret}\n{_KEEP}")


def update_webhook(
    context: typer.Context,
    name: WebhookName,
    url: Annotated[str | None, typer.Option(metavar="URL", help=_URL)] = None,
    events: Annotated[str | None, typer.Option(metavar="TYPES", help=f"{_TYPES}.")] = None,
    all_events: Annotated[bool, typer.Option("--all-events", help="Of all types.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help=_TIMEOUT)] = None,
    etag: Annotated[str, typer.Option(help=_ETAG)] = "",
    allow_unreachable: AllowUnreachable = False,
    as_json: AsJson = False,
) -> None:
    """Change what is given of a webhook, and nothing else."""
    if events is not None and all_events:
        raise typer.BadParameter("give --events or --all-events, not both", param_hint="--all-events")
    given = {"url": url is not None, "event_types": events is not None or all_events}
    paths = [path for path, is_given in {**given, "timeout": timeout is not None}.items() if is_given]
    if not paths:
        raise typer.BadParameter("give --url, --events, --all-events or --timeout")
    request = rpc.UpdateWebhookRequest(
        webhook=pb.Webhook(
            name=name,
            url=url or "",
            event_types=[] if events is None else _known(event_type_numbers, _split(events), "--events"),
            timeout=None if timeout is None else _timeout_of(timeout),
            etag=etag,
        ),
        update_mask=FieldMask(paths=paths),
        allow_unreachable=allow_unreachable,
    )
    _show(context, "UpdateWebhook", request, as_json=as_json, timeout_seconds=_REACH_SECONDS)


def list_webhooks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tenant's webhooks."""

    def read(mesh: WireMesh) -> AsyncIterator[pb.Webhook]:
        peer = mesh.service("hook")
        stub = WebhookServiceStub(peer.channel)
        return paged(peer, stub.ListWebhooks, rpc.ListWebhooksRequest(), "webhooks")

    print_list(context, "webhooks", read, print_webhooks, as_json=as_json)


def get_webhook(context: typer.Context, name: WebhookName, as_json: AsJson = False) -> None:
    """Show a webhook."""
    _show(context, "GetWebhook", rpc.GetWebhookRequest(name=name), as_json=as_json)


def pause_webhook(context: typer.Context, name: WebhookName, as_json: AsJson = False) -> None:
    """Let the messages of a webhook wait until it is resumed."""
    _show(context, "PauseWebhook", rpc.PauseWebhookRequest(name=name), as_json=as_json)


def resume_webhook(context: typer.Context, name: WebhookName, as_json: AsJson = False) -> None:
    """Send the messages of a webhook that wait now, also if the mesh paused it."""
    _show(context, "ResumeWebhook", rpc.ResumeWebhookRequest(name=name), as_json=as_json)


def delete_webhook(
    context: typer.Context,
    name: WebhookName,
    etag: Annotated[str, typer.Option(help=_ETAG)] = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a webhook with its deliveries, if it exists."""
    confirm(f"Delete the webhook {name}?", yes=yes)
    _call(context, "DeleteWebhook", rpc.DeleteWebhookRequest(name=name, etag=etag), as_json=as_json)
    if as_json:
        print_json({"deleted": name})


def rotate_secret(
    context: typer.Context,
    name: WebhookName,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="How long the previous secret signs too: 0s to 7d.")
    ] = "24h",
    request_id: Annotated[str, typer.Option(help="Makes a repeat safe.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give a webhook another secret, and print it."""
    request = rpc.RotateWebhookSecretRequest(
        name=name,
        request_id=request_id or uuid.uuid4().hex,
        keep_previous=Duration(seconds=bounded_seconds(keep, "--keep", least=0, most=_WEEK_SECONDS)),
    )
    answer = _call(context, "RotateWebhookSecret", request, as_json=as_json)
    if as_json:
        print_json(value_of(answer))
        return
    print(f"its messages are signed with {answer.secret}\n{_KEEP}")
    if answer.webhook.HasField("previous_secret_expire_time"):
        print(f"the previous secret signs too until {when(answer.webhook.previous_secret_expire_time)}")


def try_webhook(context: typer.Context, name: WebhookName, as_json: AsJson = False) -> None:
    """Send a webhook a `webhook.test` once.

    The exit code is 1 if it is not received.
    """
    request = rpc.TestWebhookRequest(name=name)
    answer = _call(context, "TestWebhook", request, as_json=as_json, timeout_seconds=_REACH_SECONDS)
    print_json(value_of(answer)) if as_json else print(attempt_line(answer.delivery))
    if answer.delivery.state != pb.WEBHOOK_DELIVERY_STATE_DELIVERED:
        raise typer.Exit(1)


def list_deliveries(
    context: typer.Context,
    name: WebhookName,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that were given up.")] = False,
    state: Annotated[str, typer.Option(help=f"Only those in this state: {', '.join(_STATES)}.")] = "",
    event_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Only events of this type, such as run.ended.")
    ] = "",
    session: Annotated[
        str,
        typer.Option(
            metavar="SESSION_ID", autocompletion=completion.sessions, help="Only events about this session."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only events of the last time, such as 24h.")
    ] = "",
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show the messages to a webhook, newest event first, with the outcome of the last request."""
    if failed and state:
        raise typer.BadParameter("give --state or --failed, not both", param_hint="--failed")
    if state and state not in _STATES:
        raise typer.BadParameter(f"unknown state; known are {', '.join(_STATES)}", param_hint="--state")
    wanted = "failed" if failed else state or "unspecified"
    request = rpc.ListWebhookDeliveriesRequest(
        name=name,
        page_size=min(limit, _PAGE),
        state=pb.WebhookDeliveryState.Value(STATE_PREFIX + wanted.upper()),
        event_type=_known(event_type_number, event_type, "--type"),
        session_id=session,
        start_time=_ago(since, "--since") if since else None,
    )

    def read(mesh: WireMesh) -> AsyncIterator[pb.WebhookDelivery]:
        peer = mesh.service("hook")
        return paged(peer, WebhookServiceStub(peer.channel).ListWebhookDeliveries, request, "deliveries")

    print_list(context, "deliveries", read, print_deliveries, limit=limit, as_json=as_json)


def replay(
    context: typer.Context,
    name: WebhookName,
    event_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENT_ID]...", help="`evt_…`, at most 100.")
    ] = None,
    failed_since: Annotated[
        str, typer.Option(metavar="TIME", help="All given up, of events of the last time, such as 7d.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Send messages again, with the same ids and bodies."""
    if bool(event_ids) == bool(failed_since):
        raise typer.BadParameter("give the ids of events, or --failed-since")
    request = rpc.ReplayWebhookDeliveriesRequest(
        name=name,
        events=rpc.WebhookEventIds(event_ids=event_ids) if event_ids else None,
        failed_since_time=_ago(failed_since, "--failed-since") if failed_since else None,
    )

    async def body(mesh: WireMesh) -> int:
        peer = mesh.service("hook")
        stub = WebhookServiceStub(peer.channel)
        count, is_partial = 0, True
        while is_partial:
            answer = await peer.unary(stub.ReplayWebhookDeliveries, request)
            count, is_partial = count + answer.replayed_count, answer.is_partial
        return count

    replayed = with_mesh(context, body, as_json=as_json)
    print_json({"replayed_count": replayed}) if as_json else print(
        f"messages that are sent again: {replayed}"
    )


def _show(
    context: typer.Context, method: str, request: Any, *, as_json: bool, timeout_seconds: float = 10.0
) -> None:
    webhook = _call(context, method, request, as_json=as_json, timeout_seconds=timeout_seconds).webhook
    print_json(value_of(webhook)) if as_json else print_webhook(webhook)


def _split(types: str) -> list[str]:
    return [one.strip() for one in types.split(",")]


def _timeout_of(text: str) -> Duration:
    return Duration(seconds=bounded_seconds(text, "--timeout", least=1, most=30))


def _known(parse: Callable[[Any], Any], given: Any, hint: str) -> Any:
    """Return what is parsed. Raise BadParameter for a text that is no type of events."""
    try:
        return parse(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _ago(text: str, hint: str) -> Timestamp:
    seconds = bounded_seconds(text, hint, least=0, most=_LONGEST_SECONDS)
    return timestamp_of(utc_now() - timedelta(seconds=seconds))
