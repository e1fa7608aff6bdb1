"""`/storage` and `/storage/files`: the transcripts and the attachment sets that the tenant stores,
and the forms that tier and recount a transcript.
"""

from typing import Any
from urllib.parse import urlencode

from spawnmesh_core.errors import InvalidRequest
from starlette.datastructures import FormData
from starlette.responses import Response

from spawnmesh_console.clients.attachment_sets import AttachmentSetPage, attachment_set_page
from spawnmesh_console.clients.operations import operation_page
from spawnmesh_console.clients.transcript_storage import (
    TranscriptStoragePage,
    start_operation,
    transcript_storage_page,
)
from spawnmesh_console.domain.operations import OperationKind
from spawnmesh_console.domain.storage import sum_of
from spawnmesh_console.pages.operations import operation_words
from spawnmesh_console.web.visit import Visit, field_text, see_other

_NEWEST_COUNT = 3


async def list_transcripts(visit: Visit) -> Response:
    """Show a page of the transcripts, and the newest operations. `part=rows` and `part=operations`
    return these alone, to keep them up to date.
    """
    if visit.text("part") == "operations":
        return visit.render("storage_newest.html", **await _newest(visit))
    token = visit.text("page_token")
    problem, page = "", TranscriptStoragePage([], "")
    try:
        page = await transcript_storage_page(visit.mesh, page_token=token)
    except InvalidRequest as error:
        problem = error.message
    is_first = not token
    values: dict[str, Any] = {
        "page": page,
        "sum": sum_of(page.transcripts),
        "problem": problem,
        "is_first": is_first,
        "is_all": is_first and not page.next_page_token,
        "next_query": urlencode({"page_token": page.next_page_token}),
        "rows_query": urlencode({"page_token": token, "part": "rows"} if token else {"part": "rows"}),
        **operation_words(visit),
    }
    if visit.text("part") == "rows":
        return visit.render("storage_rows.html", **values)
    newest = await _newest(visit)
    return visit.render("storage.html", status=400 if problem else 200, **{**newest, **values})


async def list_sets(visit: Visit) -> Response:
    """Show a page of the attachment sets."""
    token = visit.text("page_token")
    problem, page = "", AttachmentSetPage([], "")
    try:
        page = await attachment_set_page(visit.mesh, page_token=token)
    except InvalidRequest as error:
        problem = error.message
    return visit.render(
        "storage_files.html",
        status=400 if problem else 200,
        page=page,
        problem=problem,
        is_first=not token,
        is_all=not token and not page.next_page_token,
        file_count=sum(one.file_count for one in page.sets),
        total_bytes=sum(one.total_bytes for one in page.sets),
        next_query=urlencode({"page_token": page.next_page_token}),
    )


async def tier(visit: Visit) -> Response:
    """Find out what tiering would move. The page of the operation then offers to do it."""
    return await _start(visit, await visit.form(), OperationKind.TIER_DRY_RUN)


async def revert(visit: Visit) -> Response:
    """Move the payloads of the transcript back into the database."""
    return await _start(visit, await visit.form(), OperationKind.REVERT)


async def recount(visit: Visit) -> Response:
    """Count the tokens of the transcript again, or find out what would change."""
    fields = await visit.form()
    is_dry_run = bool(field_text(fields, "dry_run"))
    kind = OperationKind.RECOUNT_DRY_RUN if is_dry_run else OperationKind.RECOUNT
    return await _start(visit, fields, kind)


async def _start(visit: Visit, fields: FormData, kind: OperationKind) -> Response:
    """Start the operation once for each form, however often it is sent, and show it."""
    session_id = visit.path_part("session_id")
    started = await start_operation(visit.mesh, kind, session_id, field_text(fields, "request_id"))
    return see_other(f"/storage/operations/{started.operation_id}")


async def _newest(visit: Visit) -> dict[str, Any]:
    newest = await operation_page(visit.mesh, page_size=_NEWEST_COUNT)
    return {"operations": newest.operations, **operation_words(visit)}
