"""`/approvals`: the tool calls and questions that wait for a person, and those decided before.
`/approvals/{approval_id}` is one of them, and takes the decision.
"""

from typing import Any
from urllib.parse import urlencode

from spawnmesh_client.approval_views import Approval
from spawnmesh_core.errors import MeshError
from starlette.responses import JSONResponse, Response

from spawnmesh_console.clients.approvals import (
    FoundApprovals,
    approve_edited,
    decided_approvals,
    is_waiting,
    waiting_approvals,
    waiting_ids,
)
from spawnmesh_console.domain.approvals import (
    ANSWER,
    APPROVE,
    DENY,
    EDIT,
    NOTICES,
    NotDecided,
    SentDecision,
    approval_state,
    fate,
    shown_arguments,
)
from spawnmesh_console.web.failures import HTTP_STATUS_OF, OF_EVERY_FORM
from spawnmesh_console.web.visit import Visit, see_other

_MAX_WAITING, _MAX_DECIDED = 50, 100


async def list_approvals(visit: Visit) -> Response:
    """Show what waits, or with `show=decided` what was decided. `part=ids` returns the ids of what
    waits, for the page that keeps itself up to date.
    """
    session_id = visit.text("session_id")
    if visit.text("part") == "ids":
        waiting = await waiting_ids(visit.mesh, session_id, _MAX_WAITING)
        return JSONResponse({"ids": waiting.ids, "is_all": waiting.is_all})
    of_session = {"session_id": session_id} if session_id else {}
    values: dict[str, Any] = {
        "session_id": session_id,
        "waiting_query": urlencode(of_session),
        "decided_query": urlencode({"show": "decided", **of_session}),
        "ids_query": urlencode({"part": "ids", **of_session}),
        "card_query": urlencode({"part": "card", **of_session}),
        "in_list": True,
    }
    if visit.text("show") == "decided":
        found = await decided_approvals(visit.mesh, session_id, _MAX_DECIDED)
        return _page(visit, "approvals_decided.html", found, **values)
    found = await waiting_approvals(visit.mesh, session_id, _MAX_WAITING)
    return _page(visit, "approvals.html", found, notice=NOTICES.get(visit.text("done"), ""), **values)


async def show_approval(visit: Visit) -> Response:
    """Show one approval. `part=card` returns it as an item of the queue, if it waits."""
    approval = await visit.mesh.approvals.get(visit.path_part("approval_id"))
    if visit.text("part") != "card":
        return _one(visit, approval)
    if not is_waiting(approval):
        return Response(status_code=204)
    found = FoundApprovals([approval], is_all=True)
    return _page(visit, "approvals_card.html", found, session_id=visit.text("session_id"), in_list=True)


async def decide(visit: Visit) -> Response:
    """Take the decision of the form. A refusal is shown beside it, with the text that was sent."""
    fields = await visit.form()
    approval_id = visit.path_part("approval_id")
    sent = SentDecision.of(fields)
    approval = await visit.mesh.approvals.get(approval_id)
    try:
        await _make(visit, approval, sent)
    except NotDecided as error:
        return _one(visit, approval, status=400, sent=sent, problem=str(error))
    except MeshError as error:
        if error.status in OF_EVERY_FORM:
            raise
        return await _refused(visit, approval_id, sent, error)
    session_id = fields.get("session_id")
    of_session = {"session_id": session_id} if isinstance(session_id, str) and session_id else {}
    return see_other("/approvals", {"done": sent.kind, **of_session})


async def _make(visit: Visit, approval: Approval, sent: SentDecision) -> None:
    """Let the mesh make the decision. Raises NotDecided, and MeshError."""
    approvals, approval_id = visit.mesh.approvals, approval.approval_id
    call, question = approval.tool_call, approval.question
    if sent.kind == APPROVE:
        await approvals.approve(approval_id)
    elif sent.kind == EDIT and (edited := sent.edited_arguments(call.arguments_json if call else "")):
        await approve_edited(visit.mesh, approval_id, edited)
    elif sent.kind == EDIT:
        await approvals.approve(approval_id)
    elif sent.kind == DENY:
        await approvals.deny(approval_id, sent.text)
    elif sent.kind == ANSWER:
        await approvals.answer(approval_id, sent.answer(question.choices if question else ()))
    else:
        raise NotDecided("The form has no decision. Press one of its buttons.")


async def _refused(visit: Visit, approval_id: str, sent: SentDecision, error: MeshError) -> Response:
    """Show why the decision was not taken: beside the form, or with the decision that was."""
    approval = await visit.mesh.approvals.get(approval_id)
    problem = sent.problem([one.description for one in error.violations], error.message)
    return _one(visit, approval, status=HTTP_STATUS_OF.get(error.status, 500), sent=sent, problem=problem)


def _one(
    visit: Visit,
    approval: Approval,
    *,
    status: int = 200,
    sent: SentDecision | None = None,
    problem: str = "",
) -> Response:
    found = FoundApprovals([approval], is_all=True)
    return _page(visit, "approvals_one.html", found, status=status, sent=sent, problem=problem, session_id="")


def _page(
    visit: Visit, template: str, found: FoundApprovals, *, status: int = 200, **values: Any
) -> Response:
    return visit.render(
        template,
        status=status,
        found=found,
        may_decide=visit.person.may_call("spawnmesh.session.v1.ApprovalService", "DecideApproval"),
        approval_state=approval_state,
        fate=fate,
        is_waiting=is_waiting,
        shown_arguments=shown_arguments,
        **{"sent": None, "problem": "", "in_list": False, **values},
    )
