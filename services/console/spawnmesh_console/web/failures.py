"""Refusals of the mesh as a browser sees them: a status of HTTP, and what the person can do."""

from collections.abc import Sequence

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

HTTP_STATUS_OF = {
    Status.INVALID_ARGUMENT: 400,
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.ALREADY_EXISTS: 409,
    Status.FAILED_PRECONDITION: 409,
    Status.ABORTED: 409,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}
"""The statuses of HTTP. All others are 500."""

OF_EVERY_FORM = (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED, Status.NOT_FOUND)
"""Refusals that another form would meet, too: they have a page of their own."""

_ADVICE = {
    Status.INVALID_ARGUMENT: "Change what was asked for, and try again.",
    Status.PERMISSION_DENIED: "Ask an operator of the tenant for a token with the role that is named.",
    Status.NOT_FOUND: "It may have been deleted, or belong to another tenant. Look for it in the list.",
    Status.ALREADY_EXISTS: "Look at what is there, and choose another name.",
    Status.FAILED_PRECONDITION: "Its state has changed. Reload the page to see how it is now.",
    Status.ABORTED: "Something else changed it at the same time. Reload the page, and try again.",
    Status.RESOURCE_EXHAUSTED: "A limit of the tenant is reached. Wait a moment, and try again.",
    Status.UNAVAILABLE: "A service of the mesh does not answer. Nothing was lost: try again in a moment.",
    Status.DEADLINE_EXCEEDED: "A service of the mesh was too slow. Nothing was lost: try again in a moment.",
}
_AWAY = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)


def heading_for(error: MeshError) -> str:
    """Return the heading of the page that says it."""
    return "A service does not answer" if error.status in _AWAY else "The mesh refused this"


def advice_for(error: MeshError, *, is_change: bool = False) -> str:
    """Return what the person can do about the refusal; of a change that may have been done, too."""
    if is_change and HTTP_STATUS_OF.get(error.status, 500) >= 500:
        return "It is not known whether it was done. Look before you repeat it."
    if error.reason is Reason.CALLER_NOT_ALLOWED:
        return "Operators of the mesh may do this. The command spawnmesh token --admin makes a token of one."
    return _ADVICE.get(error.status, "Tell an operator of the mesh. The logs of the services say more.")


def form_refusal(error: MeshError, changed_before: str) -> tuple[int, str]:
    """Return the status of the page with the form, and the sentence about the refusal.

    `changed_before` is the one for an etag that is old. Raises the refusals of OF_EVERY_FORM.
    """
    if error.status in OF_EVERY_FORM:
        raise error
    if error.reason is Reason.ETAG_DIFFERS:
        return 409, changed_before
    described = [one.description for one in error.violations]
    return HTTP_STATUS_OF.get(error.status, 500), refusal_words(error.message, described)


def refusal_words(message: str, descriptions: Sequence[str]) -> str:
    """Return why the mesh refused a form, with what it found wrong in the fields."""
    return "; ".join((message, *(one for one in descriptions if one and one not in message)))
