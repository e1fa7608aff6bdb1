"""`/start`: spawn a session with a task and files. `/start/code` is the same call in other
languages.
"""

from collections.abc import Sequence
from decimal import Decimal
from uuid import uuid4

from spawnmesh_client.attachments import Attachment
from spawnmesh_client.budget_views import Budget
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from starlette.datastructures import FormData, UploadFile
from starlette.responses import JSONResponse, Response

from spawnmesh_console.clients.session_pages import session_page
from spawnmesh_console.domain.budget_limits import LimitAmounts, WrongLimit
from spawnmesh_console.domain.requested_spawn import DEFAULT_AGENT, RequestedSpawn, spawn_code
from spawnmesh_console.domain.shown_text import harmless
from spawnmesh_console.web.failures import HTTP_STATUS_OF, advice_for
from spawnmesh_console.web.visit import Visit, see_other

_UNCERTAIN = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED, Status.ABORTED, Status.INTERNAL)
"""After these, a spawn goes on or starts over if the same form is sent again."""

_ANY_TYPE = "application/octet-stream"
_REUSED = (
    "This form was sent before, with other contents: that session was spawned. "
    "Send it again to spawn another one."
)


async def show_form(visit: Visit) -> Response:
    """Show the form. The address can name an agent, a model, a label and a task."""
    return await _page(visit, RequestedSpawn.of(visit.request.query_params))


async def spawn(visit: Visit) -> Response:
    """Spawn the session, once for each form however often it is sent, and lead to it."""
    fields = await visit.form()
    try:
        return await _spawn(visit, fields)
    finally:
        await fields.close()


async def show_code(visit: Visit) -> Response:
    """Return the call that the fields of the form stand for, by the name of the language."""
    fields = await visit.form()
    names = [name for name in fields.getlist("file") if isinstance(name, str)]
    asked = RequestedSpawn.of(fields, names)
    return JSONResponse({language: harmless(code) for language, code in spawn_code(asked)})


async def _spawn(visit: Visit, fields: FormData) -> Response:
    # A browser sends a file without a name for a field in which none was chosen.
    files = [file for file in fields.getlist("files") if isinstance(file, UploadFile) and file.filename]
    asked = RequestedSpawn.of(fields, [file.filename or "" for file in files])
    request_id = str(fields.get("request_id", ""))
    if not asked.task.strip():
        return await _page(visit, asked, problem="There is no task.", request_id=request_id)
    try:
        limits = asked.limits.limits()
    except WrongLimit as error:
        return await _page(visit, asked, problem=str(error), request_id=request_id)
    try:
        session = await visit.mesh.spawn(
            asked.task,
            attachments=[_attachment(file) for file in files],
            agent=asked.agent,
            model=asked.model,
            label=asked.label,
            mode="SESSION" if asked.is_open else "",
            budget=_budget(limits),
            request_id=request_id or None,
        )
    except MeshError as error:
        if error.status is Status.UNAUTHENTICATED:
            raise
        # A failure is remembered under its id, so that the corrected form needs another one.
        again = request_id if error.status in _UNCERTAIN else ""
        return await _page(visit, asked, problem=_problem(error), error=error, request_id=again)
    return see_other(f"/sessions/{session.session_id}")


async def _page(
    visit: Visit,
    asked: RequestedSpawn,
    *,
    problem: str = "",
    error: MeshError | None = None,
    request_id: str = "",
) -> Response:
    refused_status = HTTP_STATUS_OF.get(error.status, 500) if error else 400
    return visit.render(
        "start.html",
        status=refused_status if problem else 200,
        asked=asked,
        code=spawn_code(asked),
        agents=await _agents(visit),
        models=await _models(visit),
        is_first=not problem and not await _has_sessions(visit),
        may_spawn=visit.person.may_call("spawnmesh.session.v1.SessionService", "SpawnSession"),
        max_bytes=visit.deps.settings.max_upload_bytes,
        request_id=request_id or uuid4().hex,
        problem=problem,
        limit_bytes=int(error.facts.get("limit_bytes", 0)) if error else 0,
        advice=advice_for(error) if error and error.status in _UNCERTAIN else "",
    )


def _budget(limits: LimitAmounts) -> Budget | None:
    if not limits:
        return None
    return Budget(
        cost=Decimal(limits.cost_micros).scaleb(-6) or None,
        tokens=limits.token_count or None,
        calls=limits.model_call_count or None,
        run_time=limits.run_time or None,
    )


def _attachment(file: UploadFile) -> Attachment:
    """Return the file as the mesh takes it: a stream, since it may be larger than the memory."""
    mime_type = file.content_type or ""
    return Attachment(file.filename or "", file.file, "" if mime_type == _ANY_TYPE else mime_type)


def _problem(error: MeshError) -> str:
    if error.reason is Reason.REQUEST_ID_REUSED:
        return _REUSED
    file = error.facts.get("file")
    return f"{file}: {error.message}" if file and file not in error.message else error.message


async def _agents(visit: Visit) -> Sequence[str]:
    """Return the ids of the agents besides the default one; none if they cannot be read."""
    try:
        found = await visit.mesh.wire.agents()
    except MeshError:
        return []
    return [agent.agent_id for agent in found if agent.agent_id != DEFAULT_AGENT]


async def _models(visit: Visit) -> Sequence[str]:
    """Return the models to choose from; none if they cannot be read."""
    try:
        return [model.model for model in await visit.mesh.models.list()]
    except MeshError:
        return []


async def _has_sessions(visit: Visit) -> bool:
    found = await session_page(visit.mesh, page_size=1)
    return bool(found.sessions or found.next_page_token)
