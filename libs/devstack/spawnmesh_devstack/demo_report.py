"""Print the outcome of the demo for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.condensed_spans import condensed
from spawnmesh_core.spans import Span

from spawnmesh_devstack.demo_document import Check, Document
from spawnmesh_devstack.traces import waterfall

_SHOWN_CHARACTERS = 700
_ROLES = {1: "user", 2: "assistant", 3: "tool result"}


def show_receipt(console: Console, receipt: Document) -> None:
    """Print the receipt of the spawn."""
    table = Table(title=f"Receipt of {receipt['session_id']}", title_justify="left")
    for column in ("file", "bytes", "sha256"):
        table.add_column(column, justify="right" if column == "bytes" else "left", no_wrap=column != "sha256")
    for file in receipt["files"]:
        table.add_row(Text(file["name"]), str(file["bytes"]), file["sha256"])
    console.print(table)
    console.print(
        f"{receipt['count']} files, {receipt['total_bytes']} bytes, for the run in {receipt['rel_dir']}"
    )


def show_sessions(console: Console, report: Document) -> None:
    """Print the sessions and their answers."""
    for session in report["sessions"]:
        title = (
            f"{session['agent_id']} {session['session_id']}, {session['run_state']} after "
            f"{session['seconds']} s"
        )
        body = session["result_text"] or session["error_reason"]
        console.print(Panel(Text(body), title=Text("  " * session["depth"] + title), title_align="left"))


def show_published(console: Console, report: Document) -> None:
    """Print a line for each published file."""
    sessions = {session["session_id"]: session for session in report["sessions"]}
    for file in report["published"]:
        session = sessions[file["session_id"]]
        parent = sessions.get(session["parent_session_id"])
        came_back = [f"the {parent['agent_id']} fetched"] if parent and file["fetched"] else []
        came_back += ["a client read"] if file["read"] else []
        same = f"; {' and '.join(came_back)} the same bytes" if came_back else ""
        console.print(
            Text(
                f"The {session['agent_id']} published {file['name']}, {file['bytes']} bytes, sha256"
                f" {file['sha256']}{', as it wrote them' if file['written'] else ''}{same}"
            )
        )


def show_transcript(console: Console, title: str, entries: Iterable[entry_pb2.Entry]) -> None:
    """Print the stored entries, with long texts cut."""
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("seq", justify="right")
    table.add_column("kind", no_wrap=True)
    table.add_column("what is stored", overflow="fold")
    for entry in entries:
        kind, text = _described(entry.body)
        cut = (
            text
            if len(text) <= _SHOWN_CHARACTERS
            else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"
        )
        shown = Text(cut)
        shown.highlight_words(["$redacted"], "bold red")
        table.add_row(str(entry.seq), kind, shown)
    console.print(table)


def show_attempts(console: Console, report: Document) -> None:
    """Print every attempt at a model and the decisions of the hooks."""
    agents = {session["session_id"]: session["agent_id"] for session in report["sessions"]}
    table = Table(title="Tries at models", title_justify="left")
    for column in ("agent", "model", "outcome", "ms"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    for one in report["attempts"]:
        outcome = f"[red]{one['reason']}[/red], HTTP {one['http_status']}" if one["reason"] else "answered"
        agent = agents.get(one["session_id"], one["session_id"])
        table.add_row(agent, one["model"], outcome, f"{one['milliseconds']:.1f}")
    console.print(table)
    for revision in report["revisions"]:
        agent = agents.get(revision["session_id"], "")
        console.print(
            f"{revision['plugin']} asked the {agent} for a revision, after {revision['milliseconds']} ms"
        )
    for approval in report["approvals"]:
        agent = agents.get(approval["session_id"], "")
        console.print(
            f"{approval['tool']} of the {agent} waited {approval['seconds']} s for a person, without a"
            f" runner: {approval['state']}"
        )
    if budget := report["budget"]:
        console.print(
            f"the family waited for its budget of {budget['first_calls']} model call, until a person raised"
            f" it; it has made {budget['calls']} model calls, with {budget['tokens']:,} tokens, which cost"
            f" {budget['cost']:.4f}"
        )
    live = report["live"]
    pieces = "1 piece" if live["pieces"] == 1 else f"{live['pieces']} pieces"
    retracted = f", of which {live['retracted']} drafts were retracted" if live["retracted"] else ""
    console.print(
        f"a watcher of the coordinator got {pieces} of text while models spoke{retracted}, and"
        f" {live['entries']} entries"
    )
    for announced in report["announced"]:
        pair = f"{agents[announced['child_session_id']]} -> {agents[announced['parent_session_id']]}"
        console.print(f"announced once: {pair}, {announced['run_state']}")


def show_trace(console: Console, report: Document, spans: Sequence[Span]) -> None:
    """Print the trace as a waterfall."""
    trace = report["trace"]
    shown = condensed(spans)
    console.print(f"Trace {trace['trace_id']}: {trace['spans']} spans of {', '.join(trace['services'])}")
    console.print(f"The {len(shown)} that tell most; an RPC is drawn once for both of its sides")
    for line in waterfall(shown, console.width):
        console.print(line, no_wrap=True, overflow="crop")


def show_end(console: Console, report: Document) -> None:
    """Print what is left where the sessions were deleted, the checks, and the duration."""
    if report["leftovers"] is not None:
        left = ", ".join(f"{count} {what}" for what, count in report["leftovers"].items())
        console.print(f"Left behind: {left}")
    for check in (Check(**check) for check in report["checks"]):
        mark = (
            "[green]ok[/green]  "
            if check.passed
            else "[red]no[/red]  "
            if check.required
            else "[yellow]no[/yellow]  "
        )
        console.print(
            mark,
            Text(check.name + ("" if check.required or check.passed else ", as this model did it")),
            sep="",
        )
    console.print(f"{report['seconds']} s in all, with {report['model']}")


def _described(body: entry_pb2.EntryBody) -> tuple[str, str]:
    match body.WhichOneof("kind"):
        case "message":
            message = body.message
            return _ROLES.get(message.role, "message"), "\n".join(_block(block) for block in message.content)
        case "system_note":
            return f"note: {body.system_note.topic}", body.system_note.text
        case "label":
            kind = entry_pb2.LabelKind.Name(body.label.kind).removeprefix("LABEL_KIND_")
            return "label", f"{kind} {body.label.entry_id}"
        case _:
            return "header", body.header.session_id


def _block(block: Any) -> str:
    if block.HasField("tool_call"):
        return f"{block.tool_call.name} {json.dumps(json.loads(block.tool_call.block_json))}"
    return str(block.text.text)
