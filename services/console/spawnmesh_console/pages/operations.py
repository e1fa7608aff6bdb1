"""`/storage/operations` and `/storage/operations/{operation_id}`: operations on transcripts, to
follow, to cancel, and to do after their dry run.
"""

from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from spawnmesh_core.errors import FailedPrecondition, InvalidRequest, MeshError, ResourceExhausted
from starlette.responses import Response

from spawnmesh_console.clients.operations import (
    FILTERS,
    OperationPage,
    cancel_operation,
    get_operation,
    operation_page,
)
from spawnmesh_console.clients.transcript_storage import start_operation
from spawnmesh_console.domain.operations import OperationKind, ShownOperation
from spawnmesh_console.domain.plugins import is_session
from spawnmesh_console.web.failures import HTTP_STATUS_OF
from spawnmesh_console.web.visit import Visit, field_text, see_other

_STORAGE = "spawnmesh.transcript.v1.StorageService"
_COMPACTION = "spawnmesh.transcript.v1.CompactionService"
_OPERATIONS = "spawnmesh.operations.v1.OperationService"
_AFTER_DRY_RUN = {
    OperationKind.TIER_DRY_RUN: OperationKind.TIER,
    OperationKind.RECOUNT_DRY_RUN: OperationKind.RECOUNT,
}
_NO_DRY_RUN = "This operation is no dry run that has ended, so there is nothing to confirm."


async def list_operations(visit: Visit) -> Response:
    """Show a page of the operations. `part=rows` returns it alone, to keep it up to date."""
    state = visit.text("state") if visit.text("state") in FILTERS else ""
    token = visit.text("page_token")
    problem, page = "", OperationPage([], "")
    try:
        page = await operation_page(visit.mesh, state=state, page_token=token)
    except InvalidRequest as error:
        problem = error.message
    chosen = {"state": state} if state else {}
    values: dict[str, Any] = {
        "page": page,
        "operations": page.operations,
        "chosen_state": state,
        "problem": problem,
        "is_first": not token,
        "newest_query": urlencode(chosen),
        "next_query": urlencode({**chosen, "page_token": page.next_page_token}),
        "rows_query": urlencode({**chosen, "part": "rows"}),
        **operation_words(visit),
    }
    if visit.text("part") == "rows":
        return visit.render("operations_rows.html", **values)
    return visit.render("operations.html", status=400 if problem else 200, filters=FILTERS, **values)


async def show_operation(visit: Visit) -> Response:
    """Show one operation. `part=state` returns its state alone, to keep it up to date."""
    return await _page(visit)


async def confirm(visit: Visit) -> Response:
    """Do what the dry run has found, on the same transcript. Show the operation that does it."""
    fields = await visit.form()
    seen = await get_operation(visit.mesh, visit.path_part("operation_id"))
    kind = _AFTER_DRY_RUN.get(seen.kind)
    if kind is None or not seen.is_done:
        return await _page(visit, status=409, problem=_NO_DRY_RUN)
    try:
        started = await start_operation(visit.mesh, kind, seen.session_id, field_text(fields, "request_id"))
    except (FailedPrecondition, ResourceExhausted) as error:
        return await _refused(visit, error)
    return see_other(f"/storage/operations/{started.operation_id}")


async def cancel(visit: Visit) -> Response:
    """Let the operation end after its current step, and show it."""
    await visit.form()
    operation_id = visit.path_part("operation_id")
    await cancel_operation(visit.mesh, operation_id)
    return see_other(f"/storage/operations/{operation_id}")


def operation_words(visit: Visit) -> dict[str, Any]:
    """Return what the templates of storage and operations use."""
    may_call = visit.person.may_call
    return {
        "may": partial(may_call, _STORAGE),
        "may_cancel": partial(_may_cancel, visit),
        "is_session": is_session,
        "new_request_id": lambda: uuid4().hex,
    }


async def _refused(visit: Visit, error: MeshError) -> Response:
    return await _page(visit, status=HTTP_STATUS_OF.get(error.status, 500), problem=error.message)


async def _page(visit: Visit, *, status: int = 200, problem: str = "") -> Response:
    operation = await get_operation(visit.mesh, visit.path_part("operation_id"))
    template = "operation_state.html" if visit.text("part") == "state" else "operation.html"
    return visit.render(
        template, status=status, operation=operation, problem=problem, **operation_words(visit)
    )


def _may_cancel(visit: Visit, operation: ShownOperation) -> bool:
    """Return whether the person may cancel it: that needs the role of the RPC that started it."""
    if operation.is_done or operation.is_cancelled or operation.kind is OperationKind.OTHER:
        return False
    may_call = visit.person.may_call
    service = _COMPACTION if operation.kind is OperationKind.COMPACTION else _STORAGE
    return may_call(_OPERATIONS, "CancelOperation") and may_call(service, operation.method)
