"""Commands for the audit log: list its events, and verify that none was changed or removed."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.audit.v1 import audit_event_pb2 as event_pb
from spawnmesh.audit.v1 import audit_service_pb2 as pb
from spawnmesh.policy.v1.policy_pb2 import Caller
from spawnmesh_client.audit import list_audit_events, verify_audit_events
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now

from spawnmesh_command.cli.run import AsJson, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of, when

_AGE = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TenantOption = Annotated[
    str,
    typer.Option(metavar="TENANT_ID", help="Only this tenant; else all that the token may see."),
]
_ServiceOption = Annotated[str, typer.Option(help="Only this service; else all of them.")]


class OutcomeName(StrEnum):
    """The outcomes of calls."""

    OK = "ok"
    DENIED = "denied"
    FAILED = "failed"


def add_commands(app: typer.Typer) -> None:
    """Add `audit list|verify`."""
    audit = typer.Typer(no_args_is_help=True, help="Who did what, and who was refused.")
    audit.command("list")(list_events)
    audit.command()(verify)
    app.add_typer(audit, name="audit")


def list_events(
    context: typer.Context,
    tenant: _TenantOption = "",
    since: Annotated[
        str, typer.Option(metavar="AGE|TIME", help="Events from then on: `30m`, `1h`, `7d`, or a time.")
    ] = "24h",
    until: Annotated[
        str, typer.Option(metavar="AGE|TIME", help="Events before then: an age or a time.")
    ] = "",
    method: Annotated[
        str, typer.Option(metavar="RPC", help="Only calls of this RPC, such as `KillSession`.")
    ] = "",
    outcome: Annotated[OutcomeName | None, typer.Option(help="Only calls with this outcome.")] = None,
    trace: Annotated[str, typer.Option(metavar="TRACE_ID", help="Only the call with this trace.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The largest number of events.")] = 1000,
    service: _ServiceOption = "",
    as_json: AsJson = False,
) -> None:
    """List calls that changed something and denied calls, oldest first, of all services.

    The holder of a tenant's token with the role operator sees the events of its tenant, an operator
    of the mesh those of all. With --json, events have their trace and their hash.
    """
    request = pb.ListAuditEventsRequest(
        tenant_id=tenant, start_time=_time("--since", since), method=method, trace_id=trace
    )
    if until:
        request.end_time.CopyFrom(_time("--until", until))
    if outcome is not None:
        request.outcome = event_pb.AuditOutcome.Value(f"AUDIT_OUTCOME_{outcome.name}")

    async def body(mesh: WireMesh) -> tuple[Sequence[event_pb.AuditEvent], bool]:
        events = [
            event
            for name in _services(mesh, service)
            for event in await list_audit_events(mesh.service(name), request, limit=limit + 1)
        ]
        events.sort(key=lambda event: (event.event_time.ToNanoseconds(), event.service, event.sequence))
        return events[:limit], len(events) > limit

    events, has_more = with_mesh(context, body, as_json=as_json, admin=True)
    if as_json:
        print_json({"events": [_json_of(event) for event in events], "has_more": has_more})
        return
    print_table(
        ("time", "tenant", "caller", "service", "call", "outcome", "calls", "from", "resources"),
        map(_row, events),
    )
    if has_more:
        print(f"there are more than {limit} events: use a later --since, or a higher --limit")


def verify(
    context: typer.Context,
    tenant: _TenantOption = "",
    service: _ServiceOption = "",
    as_json: AsJson = False,
) -> None:
    """Check that no event was changed or removed; print one line for each chain, with its last
    hash.

    Keep the hashes elsewhere: `audit list --json` shows the hash of each event, so an old one
    proves that a chain was not written anew. The exit code is 1 if a chain is broken.
    """

    async def body(mesh: WireMesh) -> dict[str, list[pb.VerifyAuditEventsResponse]]:
        return {
            name: [page async for page in verify_audit_events(mesh.service(name), tenant_id=tenant)]
            for name in _services(mesh, service)
        }

    found = with_mesh(context, body, as_json=as_json, admin=True)
    breaks = [one for pages in found.values() for page in pages for one in page.breaks]
    if as_json:
        print_json({"chains": list(_chains_json(found)), "intact": not breaks})
    else:
        print_table(("service", "tenant", "events", "state", "last hash"), _chain_rows(found))
    if breaks:
        raise typer.Exit(1)


def _services(mesh: WireMesh, named: str) -> Sequence[str]:
    return [named] if named else sorted(mesh.services)


def _time(option: str, text: str) -> Timestamp:
    """Return the time that an age or a text in ISO 8601 states. Raise BadParameter."""
    stamp = Timestamp()
    age = _AGE.fullmatch(text)
    try:
        if age is not None:
            time = utc_now() - timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
        else:
            time = datetime.fromisoformat(text)
            time = (time if time.tzinfo else time.astimezone()).astimezone(UTC)
        stamp.FromDatetime(time)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option} is neither an age such as `1h` nor a time such as `2026-11-27T08:00`"
        ) from None
    return stamp


def _caller_of(event: event_pb.AuditEvent) -> str:
    return Caller.Name(event.caller_kind).removeprefix("CALLER_").lower()


def _row(event: event_pb.AuditEvent) -> tuple[str, ...]:
    return (
        when(event.event_time),
        event.tenant_id or "-",
        f"{_caller_of(event)} {event.subject}" if event.caller_kind else "-",
        event.service,
        event.method.rpartition("/")[2] or "-",
        f"{event.code} {event.reason}".rstrip(),
        str(event.call_count),
        event.peer or "-",
        " ".join(event.resources),
    )


def _json_of(event: event_pb.AuditEvent) -> dict[str, object]:
    return {**value_of(event), "hash": event.hash.hex()}


_Pages = dict[str, list[pb.VerifyAuditEventsResponse]]


def _chains(found: _Pages) -> Iterator[tuple[str, event_pb.AuditChainHead, list[event_pb.AuditChainBreak]]]:
    """Yield the chains by service and tenant, each with the places where it is broken."""
    for service, pages in found.items():
        for head in (head for page in pages for head in page.heads):
            broken = (one for page in pages for one in page.breaks if one.tenant_id == head.tenant_id)
            yield service, head, list(broken)


def _chain_rows(found: _Pages) -> Iterator[tuple[str, ...]]:
    for service, head, breaks in _chains(found):
        state = ", ".join(f"BROKEN at {one.sequence} ({_defect(one)})" for one in breaks[:5]) or "intact"
        events = f"{head.first_sequence}-{head.last_sequence}"
        yield service, head.tenant_id or "-", events, state, head.hash.hex()


def _chains_json(found: _Pages) -> Iterator[dict[str, object]]:
    for service, head, breaks in _chains(found):
        yield {
            "service": service,
            **value_of(head),
            "hash": head.hash.hex(),
            "breaks": [{"sequence": one.sequence, "defect": _defect(one)} for one in breaks],
        }


def _defect(found: event_pb.AuditChainBreak) -> str:
    return event_pb.AuditDefect.Name(found.defect).removeprefix("AUDIT_DEFECT_").lower()
