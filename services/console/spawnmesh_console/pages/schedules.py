"""`/schedules` and `/schedules/{name}`: schedules with their history, and the forms that create,
change, run, pause, resume and delete.
"""

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from spawnmesh_client.budget_views import Budget
from spawnmesh_client.schedule_views import Schedule, ScheduledSpawn, ScheduleFiring
from spawnmesh_core.errors import InvalidRequest, MeshError, NotFound
from spawnmesh_core.reasons import Reason
from starlette.datastructures import FormData
from starlette.responses import Response

from spawnmesh_console.clients.schedules import ScheduleHistoryPage, firings_page
from spawnmesh_console.domain import schedules as words
from spawnmesh_console.domain.budget_limits import LimitAmounts, LimitTexts, span_text
from spawnmesh_console.domain.plugins import is_session
from spawnmesh_console.domain.requested_spawn import DEFAULT_AGENT
from spawnmesh_console.domain.schedules import SentSchedule, WrongSchedule
from spawnmesh_console.domain.session_filters import ChosenFilter
from spawnmesh_console.web.failures import form_refusal
from spawnmesh_console.web.visit import Visit, field_text, see_other

_EXAMPLE = 'spawnmesh schedule put NAME --cron "0 9 * * 1-5" --task "…"'
_HAS_NAME = "There is another schedule of this name. Choose another name, or change that schedule."
_UNCHANGED = "The schedule is like this already. Nothing was changed."
_CHANGED_BEFORE = "The schedule was changed while you looked. It is as shown now: do it again."
_NOTICES = {
    "changed": "The schedule was changed.",
    "paused": "The schedule is paused. Sessions that it has spawned go on.",
    "resumed": "The schedule is resumed. Due times count from now on.",
    "deleted": "The schedule was deleted.",
}
Refusal = WrongSchedule | MeshError


async def list_schedules(visit: Visit) -> Response:
    """Show the schedules, and the form that creates one."""
    return await _list(visit)


async def create(visit: Visit) -> Response:
    """Create the schedule of the form, and lead to it. A refusal is shown beside the form."""
    fields = await visit.form()
    sent = _sent(fields, field_text(fields, "name"))
    try:
        sent.check()
        await _check_name(visit, sent)
        await visit.mesh.schedules.put(
            sent.name,
            cron=sent.cron,
            task=sent.task,
            time_zone=sent.time_zone,
            agent=sent.agent,
            overlap=sent.overlap,
            catch_up=sent.catch_up,
        )
    except (WrongSchedule, MeshError) as error:
        return await _list(visit, sent, error)
    return _see(sent.name)


async def show_schedule(visit: Visit) -> Response:
    """Show one schedule. `part=firings` returns its history alone, to keep it up to date."""
    return await _page(visit)


async def change(visit: Visit) -> Response:
    """Change the fields that differ. A refusal is shown beside the form."""
    fields = await visit.form()
    schedule = await visit.mesh.schedules.get(visit.path_part("name"))
    sent = _sent(fields, schedule.name)
    try:
        sent.check()
        changed = sent.differs_from(_as_sent(schedule))
        if not changed:
            raise WrongSchedule(_UNCHANGED)
        await visit.mesh.schedules.update(
            schedule.name,
            cron=sent.cron if "cron" in changed else ...,
            time_zone=sent.time_zone if "time_zone" in changed else ...,
            task=sent.task if "task" in changed else ...,
            agent=sent.agent if "agent" in changed else ...,
            overlap=sent.overlap if "overlap" in changed else ...,
            catch_up=sent.catch_up if "catch_up" in changed else ...,
            etag=field_text(fields, "etag"),
        )
    except (WrongSchedule, MeshError) as error:
        return await _page(visit, error, sent)
    return _see(schedule.name, done="changed")


async def run_now(visit: Visit) -> Response:
    """Spawn the session now, once for each form however often it is sent, and show the firing."""
    fields = await visit.form()
    try:
        firing = await visit.mesh.schedules.run(
            visit.path_part("name"), field_text(fields, "request_id") or None
        )
    except MeshError as error:
        return await _page(visit, error)
    return _see(visit.path_part("name"), ran=firing.firing_id)


async def pause(visit: Visit) -> Response:
    """Pause the schedule, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.schedules.pause(visit.path_part("name")), "paused")


async def resume(visit: Visit) -> Response:
    """Resume the schedule, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.schedules.resume(visit.path_part("name")), "resumed")


async def delete(visit: Visit) -> Response:
    """Delete the schedule, and show the others."""
    fields = await visit.form()
    schedule = await visit.mesh.schedules.get(visit.path_part("name"))
    try:
        await visit.mesh.schedules.delete(schedule.name, etag=field_text(fields, "etag"))
    except MeshError as error:
        return await _page(visit, error)
    return see_other("/schedules", {"done": "deleted"})


async def _changed(visit: Visit, change: Awaitable[Schedule], done: str) -> Response:
    try:
        schedule = await change
    except MeshError as error:
        return await _page(visit, error)
    return _see(schedule.name, done=done)


async def _check_name(visit: Visit, sent: SentSchedule) -> None:
    """Raise WrongSchedule if a schedule with other content has the name: a form that is sent twice
    finds its own.
    """
    try:
        schedule = await visit.mesh.schedules.get(sent.name)
    except NotFound:
        return
    if sent.differs_from(_as_sent(schedule)):
        raise WrongSchedule(_HAS_NAME)


async def _list(visit: Visit, sent: SentSchedule | None = None, refusal: Refusal | None = None) -> Response:
    status, problem = _refused(refusal)
    return visit.render(
        "schedules.html",
        status=status,
        schedules=await visit.mesh.schedules.list(),
        sent=sent or SentSchedule(),
        problem=problem,
        notice=_NOTICES.get(visit.text("done"), ""),
        example_command=_EXAMPLE,
        agents=await _agents(visit),
        **_words(visit),
    )


async def _page(visit: Visit, refusal: Refusal | None = None, sent: SentSchedule | None = None) -> Response:
    status, problem = _refused(refusal)
    name = visit.path_part("name")
    outcome = visit.text("outcome") if visit.text("outcome") in words.OUTCOMES else ""
    token = visit.text("page_token")
    history_problem, page = "", ScheduleHistoryPage([], "")
    try:
        page = await firings_page(visit.mesh, name, outcome=outcome, page_token=token)
    except InvalidRequest as error:
        status, history_problem = 400, error.message
    chosen = {"outcome": outcome} if outcome else {}
    values: dict[str, Any] = {
        "name": name,
        "page": page,
        "outcome": outcome,
        "history_problem": history_problem,
        "is_first": not token,
        "newest_query": urlencode(chosen),
        "next_query": urlencode({**chosen, "page_token": page.next_page_token}),
        "rows_query": urlencode({**chosen, "part": "firings"}),
        **_words(visit),
    }
    if visit.text("part") == "firings":
        return visit.render("schedule_firings.html", **values)
    schedule = await visit.mesh.schedules.get(name)
    sessions = ChosenFilter(expression=f'metadata.schedule = "{schedule.name}"')
    before = _as_sent(schedule)
    return visit.render(
        "schedule.html",
        status=status,
        schedule=schedule,
        spawn_facts=_spawn_facts(schedule.spawn),
        sessions_query=urlencode(sessions.query()),
        before=before,
        sent=sent or before,
        is_sent=sent is not None,
        problem=problem,
        notice=_NOTICES.get(visit.text("done"), ""),
        ran=_ran(visit, page),
        agents=await _agents(visit),
        **values,
    )


def _refused(refusal: Refusal | None) -> tuple[int, str]:
    """Return the status of the page, and the sentence about the refusal. Raises the refusals that
    have a page of their own.
    """
    if refusal is None:
        return 200, ""
    if isinstance(refusal, WrongSchedule):
        return 400, str(refusal)
    if refusal.reason is Reason.UNKNOWN_AGENT:
        return 400, refusal.message
    return form_refusal(refusal, _CHANGED_BEFORE)


def _ran(visit: Visit, page: ScheduleHistoryPage) -> ScheduleFiring | None:
    """Return the firing that a person asked for just before, from the history."""
    firing_id = visit.text("ran")
    return next((one for one in page.firings if firing_id and one.firing_id == firing_id), None)


def _spawn_facts(spawn: ScheduledSpawn) -> Sequence[tuple[str, str]]:
    """Return the fields of the spawn that are set, besides the task and the agent."""
    texts = {
        "Label": spawn.label,
        "Model": spawn.model,
        "Mode": (spawn.mode or "").lower(),
        "Cleanup": (spawn.cleanup or "").lower(),
        "Runtime": (spawn.runtime or "").lower(),
        "Time of a run": span_text(spawn.run_timeout) if spawn.run_timeout is not None else "",
        "Thinking": (spawn.thinking or "").lower(),
        "Metadata": ", ".join(f"{key} = {value}" for key, value in sorted(spawn.metadata.items())),
        "Files": ", ".join(one.new_name or one.name for one in spawn.references),
        "Budget": _budget_text(spawn.budget) if spawn.budget is not None else "",
    }
    return [(name, text) for name, text in texts.items() if text]


def _budget_text(budget: Budget) -> str:
    """Return the limits as `spawnmesh spawn --budget` takes them."""
    micros = round(Decimal(str(budget.cost or 0)).scaleb(6))
    times = [time if isinstance(time, timedelta) else None for time in (budget.run_time, budget.wait)]
    amounts = LimitAmounts(micros, budget.tokens or 0, budget.calls or 0, times[0] or timedelta())
    texts = LimitTexts.for_limits(amounts).texts()
    if times[1] is not None:
        texts["wait"] = span_text(times[1])
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _words(visit: Visit) -> dict[str, Any]:
    may = partial(visit.person.may_call, "spawnmesh.session.v1.ScheduleService")
    return {"words": words, "may": may, "is_session": is_session, "new_request_id": lambda: uuid4().hex}


def _as_sent(schedule: Schedule) -> SentSchedule:
    return SentSchedule.for_schedule(
        schedule.name,
        schedule.cron,
        schedule.time_zone,
        schedule.spawn.task,
        schedule.spawn.agent_id,
        schedule.overlap,
        schedule.catch_up,
    )


def _sent(fields: FormData, name: str) -> SentSchedule:
    """Return the form. Browsers send each new line of the task as two characters."""
    task = fields.get("task")
    return SentSchedule.for_schedule(
        name,
        field_text(fields, "cron"),
        field_text(fields, "time_zone"),
        task if isinstance(task, str) else "",
        field_text(fields, "agent"),
        field_text(fields, "overlap"),
        field_text(fields, "catch_up"),
    )


async def _agents(visit: Visit) -> Sequence[str]:
    """Return the ids of the agents besides the default one; none if they cannot be read."""
    try:
        found = await visit.mesh.wire.agents()
    except MeshError:
        return []
    return [agent.agent_id for agent in found if agent.agent_id != DEFAULT_AGENT]


def _see(name: str, **query: str) -> Response:
    return see_other(f"/schedules/{quote(name, safe='')}", query)
