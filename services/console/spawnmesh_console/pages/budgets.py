"""`/sessions/{session_id}/budget`: the form that changes the limits of a budget."""

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from starlette.responses import Response

from spawnmesh_console.clients.budgets import change_limits, family_usage
from spawnmesh_console.domain.budget_limits import LimitAmounts, LimitTexts, WrongLimit
from spawnmesh_console.domain.budgets import SentLimits
from spawnmesh_console.pages.session import session_page
from spawnmesh_console.web.failures import HTTP_STATUS_OF, OF_EVERY_FORM
from spawnmesh_console.web.visit import Visit, field_text, see_other

_UNCHANGED = "These are the limits already. Write a higher one."
_CHANGED_BEFORE = "The limits were changed while you wrote. They are as shown now: send yours again."


async def change_budget(visit: Visit) -> Response:
    """Change the limits of a budget that the session shares. A refusal is shown beside the form,
    with the limits that were sent.
    """
    fields = await visit.form()
    session = await visit.mesh.session(visit.path_part("session_id"))
    budget_of = field_text(fields, "budget_session_id") or session.session_id
    texts = LimitTexts.of(fields)
    try:
        await _change(visit, session.session_id, budget_of, texts, field_text(fields, "etag"))
    except WrongLimit as error:
        status, problem = 400, str(error)
    except MeshError as error:
        if error.status in OF_EVERY_FORM:
            raise
        status = HTTP_STATUS_OF.get(error.status, 500)
        problem = _CHANGED_BEFORE if error.reason is Reason.ETAG_DIFFERS else error.message
    else:
        return see_other(f"/sessions/{session.session_id}", {"done": "budget"})
    sent = SentLimits(budget_of, texts, problem)
    return await session_page(visit, session, status=status, sent_limits=sent)


async def _change(visit: Visit, session_id: str, budget_of: str, texts: LimitTexts, etag: str) -> None:
    """Change the limits that differ: one that is exceeded can stay as it is.

    Raises WrongLimit, and MeshError.
    """
    limits = texts.limits()
    known = (await family_usage(visit.mesh, session_id)).budget_of(budget_of)
    changed = limits.changed_fields(known.limits if known is not None else LimitAmounts())
    if not changed:
        raise WrongLimit(_UNCHANGED)
    await change_limits(visit.mesh, budget_of, limits, changed, etag)
