"""Print the outcome of the demo on one screen of 24 lines and 80 columns."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from spawnmesh_devstack.demo_document import Check, Document

_ANSWER_LINES = 6
_INDENT = "  "


def show_summary(console: Console, report: Document) -> None:
    """Print a line for each session, the answer, the events on the way, and the checks."""
    console.print(f"The job is done, in {report['seconds']} s with {report['model']}:")
    for line in (*_sessions(report), "", *_answer(report["answer"]), "", *_events(report)):
        console.print(Text(line), no_wrap=True, overflow="ellipsis", highlight=False)
    show_failed(console, [Check(**check) for check in report["checks"]])


def show_failed(console: Console, checks: Sequence[Check]) -> None:
    """Print the number of the checks that passed, and each of the others."""
    failed = [check for check in checks if not check.passed]
    console.print(f"- {len(checks) - len(failed)} of {len(checks)} checks passed", style="bold")
    for check in failed:
        kind = "" if check.required else ", as this model did it"
        console.print(Text(f"{_INDENT}not so: {check.name}{kind}", style="red" if check.required else ""))


def show_next(console: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Print commands, each with its use."""
    width = max(len(command) for command, _ in steps)
    console.print("\nNext, in this directory:")
    for command, use in steps:
        console.print(Text(f"{_INDENT}{command:{width}}  # {use}"), soft_wrap=True)


def _sessions(report: Document) -> Iterator[str]:
    for session in report["sessions"]:
        name = _INDENT * (session["depth"] + 1) + session["agent_id"]
        outcome = session["error_reason"] or session["run_state"]
        files = len(session["attachments"])
        got = f"{files} files" if files != 1 else "1 file"
        tokens = session["input_tokens"] + session["output_tokens"]
        yield f"{name:<20}{outcome:<12}{session['seconds']:>6.2f} s  {got}, {tokens:,} tokens"


def _answer(text: str) -> Iterator[str]:
    lines = text.splitlines() or ["no answer"]
    yield from (f"{_INDENT}> {line}" for line in lines[:_ANSWER_LINES])
    if len(lines) > _ANSWER_LINES:
        yield f"{_INDENT}> … ({len(lines) - _ANSWER_LINES} more lines)"


def _events(report: Document) -> Iterator[str]:
    """Return lines for the events on the way, in their order as far as there is one."""
    agents = {session["session_id"]: session["agent_id"] for session in report["sessions"]}
    first = next((one for one in report["attempts"] if one["reason"]), None)
    if first is not None:
        after = report["attempts"].index(first) + 1
        other = next((one["model"] for one in report["attempts"][after:] if not one["reason"]), "no model")
        yield f"- {first['model']} answered {first['http_status']}, {other} took over"
    yield from _waits(report, agents)
    for file in report["published"]:
        yield f"- the {agents[file['session_id']]} published {file['name']}, {file['bytes']} bytes"
    for revision in report["revisions"]:
        agent = agents.get(revision["session_id"], "agent")
        yield f"- the plugin {revision['plugin']} had the {agent} revise its answer"
    trace = report["trace"]
    yield f"- one trace has {trace['spans']} spans of {len(trace['services'])} services"


def _waits(report: Document, agents: Mapping[str, str]) -> Iterator[str]:
    if budget := report["budget"]:
        yield f"- the budget was used up: a person raised it. It has paid {budget['calls']} calls of models"
    for approval in report["approvals"]:
        agent = agents.get(approval["session_id"], "agent")
        outcome = f"{approval['state']} by a person after {approval['seconds']} s"
        yield f"- {approval['tool']} of the {agent}: {outcome}"
