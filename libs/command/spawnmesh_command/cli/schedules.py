"""Commands for schedules, which spawn sessions by the clock."""

import uuid
from collections.abc import AsyncIterator
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as rpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh_calls.field_masks import EVERY_FIELD
from spawnmesh_client.pages import paged
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now

from spawnmesh_command.cli.arguments import FirstModel, IsExternal, KeepsFiles, RunningAgent, ScheduleName
from spawnmesh_command.cli.budgets import LIMITS, budget_of
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.durations import bounded_seconds
from spawnmesh_command.cli.lists import Limit, print_list
from spawnmesh_command.cli.references import attach_from_of, references_of
from spawnmesh_command.cli.run import AsJson, call_rpc, with_mesh
from spawnmesh_command.cli.schedule_text import print_firings, print_schedule, print_schedules
from spawnmesh_command.cli.sessions import pairs_of, print_console
from spawnmesh_command.cli.show import print_json, value_of
from spawnmesh_command.cli.thinking import Thinking, thinking_level

_SPAWN_SECONDS = 60.0
_DAY_SECONDS = 86_400
_PAGE = 1000
_call = partial(call_rpc, "session", ScheduleServiceStub)


class OverlapChoice(StrEnum):
    """The contract's OverlapPolicy."""

    SKIP = "skip"
    ALLOW = "allow"
    REPLACE = "replace"


class CatchUpChoice(StrEnum):
    """The contract's CatchUpPolicy."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class OutcomeChoice(StrEnum):
    """The contract's FiringOutcome."""

    SPAWNED = "spawned"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


def add_commands(app: typer.Typer) -> None:
    """Add `schedule put|list|get|pause|resume|delete|run|history`."""
    schedule = typer.Typer(no_args_is_help=True, help="Cron lines that spawn sessions.")
    schedule.command()(put)
    schedule.command("list")(list_schedules)
    schedule.command("get")(get_schedule)
    schedule.command("pause")(pause_schedule)
    schedule.command("resume")(resume_schedule)
    schedule.command("delete")(delete_schedule)
    schedule.command("run")(run_schedule)
    schedule.command("history")(list_firings)
    app.add_typer(schedule, name="schedule")


def put(
    context: typer.Context,
    name: ScheduleName,
    cron: Annotated[
        str,
        typer.Option(
            metavar="LINE", help="Minute, hour, day of month, month, day of week, as '0 9 * * 1-5'."
        ),
    ],
    task: Annotated[str, typer.Option(metavar="TASK", help="The task of each session.")],
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of the line, such as Europe/Berlin.")
    ] = "UTC",
    agent: RunningAgent = "default",
    label: Annotated[str, typer.Option(help="A name for people.")] = "",
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--meta",
            "--metadata",
            metavar="KEY=VALUE",
            help="A text that `sessions --filter` finds; may be repeated. `schedule` is set to NAME.",
        ),
    ] = None,
    model: FirstModel = "",
    thinking: Thinking = "",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Of each run: 1s to 1d.")] = "1h",
    budget: Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help=f"What each session and its descendants may use together, such as `{LIMITS}`.",
        ),
    ] = "",
    attach_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET_ID[/NAME[:NEW_NAME]]",
            help="A file that the mesh has, or all files that a set has now; may be repeated.",
        ),
    ] = None,
    stay_open: Annotated[bool, typer.Option("--open", help="Keep each session open for messages.")] = False,
    keep: KeepsFiles = False,
    external: IsExternal = False,
    overlap: Annotated[
        OverlapChoice,
        typer.Option(help="If the session of an earlier firing goes on: skip, spawn beside it, or kill it."),
    ] = OverlapChoice.SKIP,
    catch_up: Annotated[
        CatchUpChoice, typer.Option(help="The due times to fire that were missed while the mesh was down.")
    ] = CatchUpChoice.NONE,
    etag: Annotated[str, typer.Option(help="Only if the schedule still has this etag.")] = "",
    as_json: AsJson = False,
) -> None:
    """Create a schedule, or replace the one with that name, and print its next due times."""
    wanted = [attach_from_of(text) for text in attach_from or ()]
    spawn = pb.ScheduledSpawn(
        task=task,
        label=label,
        agent_id=agent,
        model=model,
        mode=session_pb2.SESSION_MODE_SESSION if stay_open else session_pb2.SESSION_MODE_RUN,
        cleanup=session_pb2.CLEANUP_KEEP if keep else session_pb2.CLEANUP_UNSPECIFIED,
        runtime=session_pb2.RUNTIME_EXTERNAL if external else session_pb2.RUNTIME_SUBAGENT,
        run_timeout=Duration(seconds=bounded_seconds(timeout, "--timeout", least=1, most=_DAY_SECONDS)),
        thinking=thinking_level(thinking),
        metadata=pairs_of(metadata or ()),
        budget=budget_of(budget),
    )
    schedule = pb.Schedule(
        name=name,
        cron=cron,
        time_zone=zone,
        spawn=spawn,
        overlap=pb.OverlapPolicy.Value(f"OVERLAP_POLICY_{overlap.name}"),
        catch_up=pb.CatchUpPolicy.Value(f"CATCH_UP_POLICY_{catch_up.name}"),
        etag=etag,
    )
    request = rpc.UpdateScheduleRequest(
        schedule=schedule, update_mask=FieldMask(paths=[EVERY_FIELD]), allow_missing=True
    )

    async def body(mesh: WireMesh) -> pb.Schedule:
        request.schedule.spawn.references.extend(await references_of(mesh, wanted))
        peer = mesh.service("session")
        return (await peer.unary(ScheduleServiceStub(peer.channel).UpdateSchedule, request)).schedule

    _print(with_mesh(context, body, as_json=as_json), as_json)


def list_schedules(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tenant's schedules with their next due times."""

    def read(mesh: WireMesh) -> AsyncIterator[pb.Schedule]:
        peer = mesh.service("session")
        stub = ScheduleServiceStub(peer.channel)
        return paged(peer, stub.ListSchedules, rpc.ListSchedulesRequest(), "schedules")

    print_list(context, "schedules", read, partial(print_schedules, now=utc_now()), as_json=as_json)


def get_schedule(context: typer.Context, name: ScheduleName, as_json: AsJson = False) -> None:
    """Show a schedule and its next due times."""
    answer = _call(context, "GetSchedule", rpc.GetScheduleRequest(name=name), as_json=as_json)
    _print(answer.schedule, as_json)


def pause_schedule(context: typer.Context, name: ScheduleName, as_json: AsJson = False) -> None:
    """Fire nothing until the schedule is resumed. Its sessions go on."""
    answer = _call(context, "PauseSchedule", rpc.PauseScheduleRequest(name=name), as_json=as_json)
    _print(answer.schedule, as_json)


def resume_schedule(context: typer.Context, name: ScheduleName, as_json: AsJson = False) -> None:
    """Fire the due times of a schedule from now on."""
    answer = _call(context, "ResumeSchedule", rpc.ResumeScheduleRequest(name=name), as_json=as_json)
    _print(answer.schedule, as_json)


def delete_schedule(
    context: typer.Context,
    name: ScheduleName,
    etag: Annotated[str, typer.Option(help="Only if the schedule still has this etag.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a schedule with its history, if it exists. Its sessions go on."""
    confirm(f"Delete the schedule {name}?", yes=yes)
    _call(context, "DeleteSchedule", rpc.DeleteScheduleRequest(name=name, etag=etag), as_json=as_json)
    if as_json:
        print_json({"deleted": name})


def run_schedule(
    context: typer.Context,
    name: ScheduleName,
    request_id: Annotated[str, typer.Option(help="A repeat with this id returns the same session.")] = "",
    as_json: AsJson = False,
) -> None:
    """Spawn the session of a schedule now, also if it is paused."""
    request = rpc.RunScheduleRequest(name=name, request_id=request_id or uuid.uuid4().hex)
    answer = _call(context, "RunSchedule", request, as_json=as_json, timeout_seconds=_SPAWN_SECONDS)
    if as_json:
        print_json(value_of(answer.firing))
        return
    session_id = answer.firing.session_id
    print(f"session  {session_id}\nwatch    spawnmesh watch {session_id}")
    print_console(context, session_id)


def list_firings(
    context: typer.Context,
    name: ScheduleName,
    outcome: Annotated[OutcomeChoice | None, typer.Option(help="Only firings with this outcome.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show the firings of a schedule, newest due time first."""
    request = rpc.ListScheduleFiringsRequest(
        name=name,
        page_size=min(limit, _PAGE),
        outcome=pb.FiringOutcome.Value(f"FIRING_OUTCOME_{outcome.name if outcome else 'UNSPECIFIED'}"),
    )

    def read(mesh: WireMesh) -> AsyncIterator[pb.ScheduleFiring]:
        peer = mesh.service("session")
        return paged(peer, ScheduleServiceStub(peer.channel).ListScheduleFirings, request, "firings")

    print_list(context, "firings", read, print_firings, limit=limit, as_json=as_json)


def _print(schedule: pb.Schedule, as_json: bool) -> None:
    print_json(value_of(schedule)) if as_json else print_schedule(schedule)
