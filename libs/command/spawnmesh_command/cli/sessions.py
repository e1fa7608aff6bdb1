"""Commands for sessions."""

import sys
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from spawnmesh.session.v1 import session_pb2
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now

from spawnmesh_command.cli import completion, live, session_diff
from spawnmesh_command.cli import session_removal as session_ends
from spawnmesh_command.cli.arguments import FirstModel, IsExternal, KeepsFiles, RunningAgent, SessionId
from spawnmesh_command.cli.budget_text import waiting_lines
from spawnmesh_command.cli.budgets import LIMITS, budget_of
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.lists import Limit, print_list
from spawnmesh_command.cli.numbers import INT64_MAX
from spawnmesh_command.cli.outputs import published_text
from spawnmesh_command.cli.references import attach_from_of, references_of
from spawnmesh_command.cli.refusals import print_error
from spawnmesh_command.cli.run import AsJson, settings_of, with_mesh
from spawnmesh_command.cli.session_table import print_sessions
from spawnmesh_command.cli.show import (
    interrupted_line,
    print_json,
    print_session,
    run_state,
    value_of,
)
from spawnmesh_command.cli.thinking import Thinking, thinking_level
from spawnmesh_command.cli.transfers import progress_bars
from spawnmesh_command.endpoints import find_endpoints

Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")]


Waited = tuple[session_pb2.Session, bool, str]
"""A session, whether its run has ended, and the lines about the files that it has published."""


class SessionDetail(StrEnum):
    """The fields of each session of a list, as the contract's SessionView."""

    BASIC = "basic"
    FULL = "full"


def add_commands(app: typer.Typer) -> None:
    """Add `spawn`, `wait`, `watch`, `sessions`, `send`, `interrupt` and `kill`."""
    for command in (spawn, wait, watch, send, interrupt, kill):
        app.command()(command)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(sessions)
    session_ends.add_commands(group)
    session_diff.add_commands(group)
    app.add_typer(group, name="sessions")
    app.add_typer(group, name="session", hidden=True)  # So that a command about one reads well.


def spawn(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    attach: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            metavar="FILE",
            help="A file to hand over; may be repeated.",
        ),
    ] = None,
    attach_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET_ID[/NAME[:NEW_NAME]]",
            help="A file that the mesh has, or all files of a set, such as what another session has"
            " published; may be repeated.",
        ),
    ] = None,
    agent: RunningAgent = "default",
    label: Annotated[str, typer.Option(help="A name for people.")] = "",
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A text that `sessions --filter` finds; may be repeated."),
    ] = None,
    model: FirstModel = "",
    thinking: Thinking = "",
    parent: Annotated[
        str,
        typer.Option(metavar="SESSION_ID", autocompletion=completion.sessions, help="The parent session."),
    ] = "",
    fork_of: Annotated[
        str,
        typer.Option(
            metavar="SESSION_ID",
            autocompletion=completion.sessions,
            help="The session to fork at --fork-at; else the parent.",
        ),
    ] = "",
    fork_at: Annotated[
        int, typer.Option(min=0, max=INT64_MAX, help="Begin with a copy up to this entry, by its seq.")
    ] = 0,
    budget: Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help=f"What it and its descendants may use together, such as `{LIMITS}`. While it is used"
            " up, runs wait for a higher limit: `wait` at most, else seven days.",
        ),
    ] = "",
    request_id: Annotated[
        str, typer.Option(help="A repeated spawn with this id returns the same session.")
    ] = "",
    stay_open: Annotated[bool, typer.Option("--open", help="Keep it open for more messages.")] = False,
    keep: KeepsFiles = False,
    external: IsExternal = False,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Wait until its run has ended.")] = False,
    timeout: Timeout = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Spawn a session. With --wait, print what happens in it, too, until its run has ended.

    The exit code is then 0 only if the run succeeded.
    """
    pairs = pairs_of(metadata or ())
    wanted = [attach_from_of(text) for text in attach_from or ()]
    limits = budget_of(budget)
    if fork_of and not fork_at:
        raise typer.BadParameter("say up to which entry: --fork-at SEQ", param_hint="--fork-of")
    fork = session_pb2.ForkPoint(session_id=fork_of, seq=fork_at) if fork_at else None

    shown = live.LivePrinter() if wait_for_it and not as_json else None

    async def body(mesh: WireMesh) -> Waited:
        with progress_bars() as on_progress:
            spawned = await mesh.spawn(
                task,
                attachments=attach or (),
                references=await references_of(mesh, wanted),
                agent_id=agent,
                label=label,
                metadata=pairs,
                model=model,
                thinking=thinking_level(thinking),
                parent_session_id=parent,
                fork=fork,
                budget=limits,
                request_id=request_id or None,
                mode=session_pb2.SESSION_MODE_SESSION if stay_open else session_pb2.SESSION_MODE_RUN,
                cleanup=session_pb2.CLEANUP_KEEP if keep else session_pb2.CLEANUP_UNSPECIFIED,
                runtime=session_pb2.RUNTIME_EXTERNAL if external else session_pb2.RUNTIME_SUBAGENT,
                on_progress=on_progress,
            )
        if not wait_for_it:
            return spawned, True, ""
        wait_for_end = partial(_waited, mesh, spawned.session_id, timeout)
        if shown is None:
            return *await wait_for_end(), ""
        spawned.latest_run.ClearField("result_text")  # A repeated spawn can have one.
        print_session(spawned)
        print_console(context, spawned.session_id)
        ended, done = await live.print_run(mesh, spawned, shown, wait_for_end)
        return ended, done, await published_text(mesh, ended.latest_run)

    with live.resumable(shown):
        session, done, published = with_mesh(context, body, as_json=as_json)
    if shown is None or not shown.print_result(session.latest_run):
        _print(session, as_json)
    _print_published(published)
    if not wait_for_it and not as_json:
        print_console(context, session.session_id)
    if wait_for_it:
        _end(session, done, timeout, as_json)


def print_console(context: typer.Context, session_id: str) -> None:
    """Print where the console of a mesh on this machine shows the session, if it has one."""
    if console := find_endpoints(settings_of(context)).console:
        print(f"console  {console}/sessions/{session_id}", flush=True)


def _print_published(text: str) -> None:
    if text:
        print(f"\n{text}", flush=True)


def wait(
    context: typer.Context, session_id: SessionId, timeout: Timeout = 3600.0, as_json: AsJson = False
) -> None:
    """Wait until a session's newest run has ended. The exit code is 0 only if it succeeded."""

    async def body(mesh: WireMesh) -> Waited:
        session, done = await _waited(mesh, session_id, timeout)
        return session, done, "" if as_json else await published_text(mesh, session.latest_run)

    session, done, published = with_mesh(context, body, as_json=as_json)
    _print(session, as_json)
    _print_published(published)
    _end(session, done, timeout, as_json)


def watch(
    context: typer.Context,
    session_id: SessionId,
    after: Annotated[
        str, typer.Option(metavar="CURSOR", help="Only what comes after this cursor of an earlier watch.")
    ] = "",
    family: Annotated[
        bool, typer.Option("--family", help="Also the sessions that are spawned below it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a session until it is closed: its states, and what is said and done in it. With --json
    one event a line.
    """
    kind = live.JsonPrinter if as_json else live.LivePrinter
    printer = kind(session_id, after, with_descendants=family)
    with live.resumable(printer):
        with_mesh(context, lambda mesh: live.print_session_live(mesh, printer), as_json=as_json)


def sessions(
    context: typer.Context,
    filter: Annotated[
        str,
        typer.Option(
            metavar="FILTER", help="Only those that fulfil it, as `state = ACTIVE AND label = nightly`."
        ),
    ] = "",
    order_by: Annotated[
        str, typer.Option(metavar="ORDER", help="`create_time desc`, `create_time` or `end_time desc`.")
    ] = "",
    view: Annotated[
        SessionDetail, typer.Option(help="`full`: also results and the names of files, with --json.")
    ] = SessionDetail.BASIC,
    limit: Limit = 50,
    archived: Annotated[bool, typer.Option("--archived", help="Also archived sessions.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first unless --order-by is given; or archive or delete one."""
    if context.invoked_subcommand is not None:
        return

    def read(mesh: WireMesh) -> AsyncIterator[session_pb2.Session]:
        return mesh.sessions(
            filter=filter,
            order_by=order_by,
            view=session_pb2.SessionView.Value(f"SESSION_VIEW_{view.name}"),
            page_size=min(limit, 500),
            include_archived=archived,
        )

    show = partial(print_sessions, now=utc_now())
    print_list(context, "sessions", read, show, limit=limit, as_json=as_json)


def send(
    context: typer.Context,
    session_id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    request_id: Annotated[str, typer.Option(help="A repeated message with this id changes nothing.")] = "",
    as_json: AsJson = False,
) -> None:
    """Send a message to a session's inbox."""
    run = with_mesh(
        context, lambda mesh: mesh.send(session_id, text, request_id=request_id or None), as_json=as_json
    )
    if as_json:
        print_json(value_of(run))
    else:
        print(f"{run.run_id} will read it")


def interrupt(
    context: typer.Context,
    session_id: SessionId,
    text: Annotated[
        str | None, typer.Option(help="Let the run go on with this message, which it reads next.")
    ] = None,
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN_ID", help="Interrupt this run, and no later one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """End a session's live run at its next safe point; the session stays open."""
    if text is not None and not text.strip():
        raise typer.BadParameter("has no text; leave it out to end the run", param_hint="--text")
    answer = with_mesh(
        context, lambda mesh: mesh.interrupt(session_id, text or "", run_id=run_id), as_json=as_json
    )
    if as_json:
        print_json(value_of(answer.run) if answer.HasField("run") else {})
    else:
        print(interrupted_line(answer.run if answer.HasField("run") else None, with_text=bool(text)))


def kill(context: typer.Context, session_id: SessionId, yes: Yes = False, as_json: AsJson = False) -> None:
    """End a session and its descendants."""
    confirm(f"End {session_id} and its descendants?", yes=yes)
    answer = with_mesh(context, lambda mesh: mesh.kill(session_id), as_json=as_json)
    if as_json:
        print_json(value_of(answer))
    else:
        print(f"ended; runs killed: {answer.killed_run_count}")


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the values by their keys. Raise BadParameter for a text that is not KEY=VALUE."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or key in pairs:
            raise typer.BadParameter(
                f"{text!r} is not KEY=VALUE with a key of its own", param_hint="--metadata"
            )
        pairs[key] = value
    return pairs


async def _waited(
    mesh: WireMesh, session_id: str, timeout_seconds: float
) -> tuple[session_pb2.Session, bool]:
    """Wait, and print a line to standard error whenever the run begins to wait for a person or a
    budget.
    """
    printed = {""}

    async def on_session(session: session_pb2.Session) -> None:
        lines = await waiting_lines(mesh, session.latest_run)
        if lines not in printed:
            printed.add(lines)
            print(lines, file=sys.stderr, flush=True)

    answer = await mesh.wait(session_id, timeout_seconds, on_session)
    return answer.session, answer.done


def _print(session: session_pb2.Session, as_json: bool) -> None:
    if as_json:
        print_json(value_of(session))
    else:
        print_session(session)


def _end(session: session_pb2.Session, done: bool, timeout_seconds: float, as_json: bool) -> None:
    """Set exit code 1 and print the reason, unless the run succeeded.

    The session is printed already.
    """
    run = session.latest_run
    if done and run.state == session_pb2.RUN_STATE_SUCCEEDED:
        return
    if not as_json:
        reason = reason_of(run.error_reason or session.failure_reason)
        why = ": ".join(part for part in (reason, run.error_message) if part)
        ended = f"the run ended as {run_state(session) or 'SPAWN_FAILED'}" + (f": {why}" if why else "")
        print_error(
            ended
            if done
            else f"not done after {timeout_seconds:g} s; continue with `spawnmesh wait {session.session_id}`"
        )
    raise typer.Exit(1)
