"""Output of commands: JSON for programs, tables for people."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text
from spawnmesh.hook.v1.revision_pb2 import (
    REVISION_CAP_FINAL_EFFECTS,
    REVISION_CAP_LAST_TURN,
    REVISION_CAP_OBJECTION_KEY,
    REVISION_CAP_RUN,
    CappedRevision,
    RevisionCap,
)
from spawnmesh.session.v1.session_pb2 import (
    RECEIPT_WARNING_MOUNT_PATH_IGNORED,
    RUN_STATE_FINALIZING,
    RUN_STATE_INTERRUPTED,
    RUN_STATE_QUEUED,
    RUN_STATE_RUNNING,
    RUN_STATE_WAITING_APPROVAL,
    RUN_STATE_WAITING_BUDGET,
    Run,
    RunState,
    Session,
    SessionEvent,
    SessionEventKind,
    SessionState,
)
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantState
from spawnmesh.session.v1.tenant_service_pb2 import ServiceTenantStatus
from spawnmesh.tenancy.v1.tenant_status_pb2 import ParticipationState, TenantStatus
from spawnmesh_calls.wire_reasons import reason_of

_LINE_CHARS = 1000  # More than a terminal is wide.
_PIPED_WIDTH = 160  # Wide enough for every id if the output is no terminal.


def value_of(message: Message) -> dict[str, object]:
    """Return the message in protobuf's JSON mapping, with the contract's names and every plain
    field.

    64-bit integers are strings.
    """
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def print_json(value: object) -> None:
    """Print one line and flush it, so that a program can follow a stream."""
    print(json.dumps(value), flush=True)


def plain(text: str, keep: str = "\n\t") -> str:
    """Escape unprintable characters except those in `keep`: they could control a terminal."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def one_line(text: str) -> str:
    """Return the text as one line that is no wider than the terminal."""
    line = Text(plain(text[:_LINE_CHARS], keep=""))
    line.truncate(console().width, overflow="ellipsis")
    return line.plain


def console() -> Console:
    """Return a console on the current standard output."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table.

    The first column, an id, is never cut; the last one takes the remaining width.
    """
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(
            name, no_wrap=place == 0, min_width=30 if name == "session" else None, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console().print(table)


def run_state(session: Session) -> str:
    """Return the newest run's state, such as `RUNNING`; empty before there is a run."""
    return _run_state(session.latest_run) if session.HasField("latest_run") else ""


def when(stamp: Timestamp) -> str:
    """Return the local time to the second."""
    return stamp.ToDatetime(tzinfo=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if stamp.seconds else ""


def print_tenants(tenants: Sequence[Tenant]) -> None:
    """Print a row for each tenant."""
    print_table(
        ("tenant", "created", "settings", "name"),
        (
            (one.tenant_id, when(one.create_time), f"v{one.settings_version}", one.display_name)
            for one in tenants
        ),
    )


def print_tenant(tenant: Tenant, settings: Sequence[str]) -> None:
    """Print a tenant, one line for each of its `settings`, and the progress of its deletion."""
    rows = [
        ("tenant", tenant.tenant_id),
        ("state", TenantState.Name(tenant.state).removeprefix("TENANT_STATE_")),
    ]
    if tenant.display_name:
        rows.append(("name", tenant.display_name))
    if tenant.HasField("create_time"):
        rows.append(("created", when(tenant.create_time)))
    if tenant.settings_version:
        rows.append(("settings", f"v{tenant.settings_version}"))
    if tenant.etag:
        rows.append(("etag", tenant.etag))
        rows.extend(("", setting) for setting in settings)
    if tenant.HasField("deletion"):
        deletion = tenant.deletion
        rows.append(
            (
                "deletion",
                f"requested {when(deletion.request_time)}, done {when(deletion.end_time) or 'not yet'}",
            )
        )
        removed = (
            f"{deletion.deleted_session_count} sessions, {deletion.deleted_transcript_count} transcripts"
        )
        rows.append(
            (
                "removed",
                f"{removed}, {deletion.deleted_object_count} objects;"
                f" runs killed: {deletion.killed_run_count}",
            )
        )
        if deletion.stalled_by:
            rows.append(("stalled by", deletion.stalled_by))
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="dim"), Text(plain(value)))
    console().print(grid)


def print_tenant_status(services: Sequence[ServiceTenantStatus]) -> None:
    """Print a row for each service: the tenant's state, settings, purge and stored items."""
    print_table(
        ("service", "state", "settings", "purge", "stored"),
        (
            (one.service, *_status_cells(one.status))
            if one.HasField("status")
            else (one.service, "?", "", "", f"no answer: {reason_of(one.error_reason)}")
            for one in services
        ),
    )


def _status_cells(status: TenantStatus) -> tuple[str, str, str, str]:
    """Return state, settings, purge and stored items as cells of a table."""
    purge = ""
    if status.HasField("purge_begin_time"):
        purge = f"since {when(status.purge_begin_time)}, done {when(status.purge_end_time) or 'not yet'}"
    stored = ", ".join(
        f"{items.count}{'+' if items.has_more else ''} {items.kind}" for items in status.stored_items
    )
    if status.HasField("storage"):
        storage = status.storage
        stored += (
            f"{', ' if stored else ''}{storage.stored_bytes + storage.uploading_bytes} of"
            f" {storage.max_stored_bytes} bytes"
        )
    return (
        ParticipationState.Name(status.state).removeprefix("PARTICIPATION_STATE_"),
        f"v{status.settings_version}" if status.settings_version else "",
        purge,
        stored or "nothing",
    )


def print_session(session: Session) -> None:
    """Print a session: its request, its files and its run."""
    run = session.latest_run
    rows = [("session", session.session_id), ("state", session_state(session)), ("agent", session.agent_id)]
    if session.label:
        rows.append(("label", session.label))
    rows.extend((f"metadata.{key}", text) for key, text in sorted(session.metadata.items()))
    if session.HasField("latest_run"):
        rows.append(("run", f"{run.run_id} {run_state(session)}"))
    if run.HasField("delay") and run.state == RUN_STATE_QUEUED:
        delay = run.delay
        why = ": ".join(part for part in (reason_of(delay.reason), delay.message) if part)
        rows.append(("delayed", f"until {when(delay.not_before_time)}, because of {why}"))
    rows.extend(("not revised", _capped(capped)) for capped in run.capped_revisions)
    if session.HasField("receipt"):
        receipt = session.receipt
        rows.append(("files", f"{receipt.count}, {receipt.total_bytes} bytes, in {receipt.rel_dir}"))
        rows.extend(
            ("", f"{file.name}  {file.size_bytes} bytes  sha256 {file.sha256}") for file in receipt.files
        )
        if receipt.mount_path:
            rows.append(("", f"the caller names them {receipt.mount_path}"))
        if RECEIPT_WARNING_MOUNT_PATH_IGNORED in receipt.warnings:
            rows.append(
                ("", "the mount path was ignored: it has other characters than A-Z a-z 0-9 . _ / : -")
            )
    rows.append(("trace", session.trace_id))
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="dim"), Text(plain(value)))
    console().print(grid)
    if line := waiting_line(run):
        print(line)
    if run.result_text:
        console().print(Text(plain("\n" + run.result_text)))


def event_line(event: SessionEvent) -> str:
    """Return time, kind and subject of an event."""
    kind = SessionEventKind.Name(event.kind).removeprefix("SESSION_EVENT_KIND_")
    state = RunState.Name(event.run_state).removeprefix("RUN_STATE_") if event.run_state else ""
    columns = (
        when(event.event_time),
        kind,
        state,
        event.run_id,
        event.child_session_id,
        event.set_id,
        event.detail,
    )
    return plain("  ".join(part for part in columns if part), keep="")


def waiting_line(run: Run) -> str:
    """Return what a run waits for and what to type, if it waits for a person or for its budget;
    else nothing.
    """
    if run.state == RUN_STATE_WAITING_BUDGET:
        return f"waits for its budget: spawnmesh budget {run.budget_session_id}"
    if run.state != RUN_STATE_WAITING_APPROVAL:
        return ""
    return f"waits for approval {run.approval_id}: spawnmesh approvals show {run.approval_id}"


def interrupted_line(run: Run | None, *, with_text: bool) -> str:
    """Return the effect of an interrupt on the run; None if there is no run."""
    if run is None:
        return "there is no run"
    if with_text:
        return f"{run.run_id} reads the message next"
    if run.state == RUN_STATE_INTERRUPTED:
        return f"{run.run_id} is interrupted"
    if run.state in _LIVE:
        return f"{run.run_id} ends at its next safe point"
    return f"{run.run_id} had ended before: {_run_state(run)}"


_LIVE = (
    RUN_STATE_QUEUED,
    RUN_STATE_RUNNING,
    RUN_STATE_WAITING_APPROVAL,
    RUN_STATE_WAITING_BUDGET,
    RUN_STATE_FINALIZING,
)
_CAPS: "dict[RevisionCap.ValueType, str]" = {
    REVISION_CAP_RUN: "the run had all its revisions",
    REVISION_CAP_OBJECTION_KEY: "the attempts for its objection key were used up",
    REVISION_CAP_FINAL_EFFECTS: "the run had effects that cannot be undone",
    REVISION_CAP_LAST_TURN: "the run had no turn left",
}


def _capped(capped: CappedRevision) -> str:
    why = _CAPS.get(capped.cap, "a bound was reached")
    return f"the plugin {capped.plugin} wanted a revision, but {why}"


def _run_state(run: Run) -> str:
    return RunState.Name(run.state).removeprefix("RUN_STATE_")


def session_state(session: Session) -> str:
    """Return the state, such as `ACTIVE`."""
    return SessionState.Name(session.state).removeprefix("SESSION_STATE_")
