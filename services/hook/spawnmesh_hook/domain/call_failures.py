"""The reasons of calls of plugins without a valid answer. No text here comes from a plugin."""

from dataclasses import dataclass
from http import HTTPStatus

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_hook.domain.deliveries import DeliveryDecision

MAX_ANSWER_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The reason for which a plugin gave no valid answer, without content.

    `decision` names the failure in the delivery log. `counts_against_plugin` says whether the
    plugin's circuit breaker counts it. `is_transient` says that the plugin gave no answer, so that
    it may give a valid one later. It is false for a malformed answer, which would be malformed
    again, and for a call or an answer that is too large for the other side.

    A refusal of the call, such as of its token, is no answer: a plugin also refuses its calls while
    the keys of the mesh are replaced, or after a start with wrong settings. As for a plugin that is
    not there, its owner repairs that, and `max_wait` bounds the wait.
    """

    error: str
    decision: DeliveryDecision = DeliveryDecision.FAILED
    counts_against_plugin: bool = True
    is_transient: bool = False


NO_TIME_LEFT = CallFailure("no time was left to call it", counts_against_plugin=False, is_transient=True)
CANCELLED = CallFailure(
    "the call was cancelled before it answered", counts_against_plugin=False, is_transient=True
)
BULKHEAD_FULL = CallFailure(
    "it had its maximum number of concurrent calls", counts_against_plugin=False, is_transient=True
)
CIRCUIT_OPEN = CallFailure(
    "it failed too often, and its circuit breaker is open",
    decision=DeliveryDecision.SKIPPED,
    counts_against_plugin=False,
    is_transient=True,
)
STOPPED_ANSWERING = CallFailure(
    "it stopped answering, also its health checks", counts_against_plugin=False, is_transient=True
)
SILENT = CallFailure(
    "it answers no health check, and is called again when it does",
    decision=DeliveryDecision.SKIPPED,
    counts_against_plugin=False,
    is_transient=True,
)
NO_ADDRESS = CallFailure("its endpoint's name has no address", is_transient=True)
ANSWER_TOO_LARGE = CallFailure(f"malformed answer: more than {MAX_ANSWER_BYTES} bytes")
ANSWER_TOO_COMPLEX = CallFailure("malformed answer: it takes too long to read")
ANSWER_UNREADABLE = CallFailure("malformed answer: not a message of the proto")
ANSWER_NOT_JSON = CallFailure("malformed answer: not the JSON of the proto message")
NO_CONNECTION = CallFailure("the call failed: no connection", is_transient=True)


def timed_out(seconds: float) -> CallFailure:
    """Return the failure of a plugin that had a fair share of its timeout and did not answer."""
    return CallFailure(f"no answer within {seconds:.3g} s", is_transient=True)


def deadline_too_short(seconds: float) -> CallFailure:
    """Return the failure of a call that had too little time left to blame the plugin."""
    return CallFailure(
        f"no answer in the {seconds:.3g} s that were left for it",
        counts_against_plugin=False,
        is_transient=True,
    )


def dns_lookup_failed(why: str) -> CallFailure:
    """Return the failure of a DNS lookup. It says nothing about the plugin."""
    return CallFailure(
        f"the DNS lookup of its endpoint's name failed: {why}",
        counts_against_plugin=False,
        is_transient=True,
    )


# A repeat has the same result: the same call is too large, or the same answer takes too long.
_FINAL = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.PROCESSING_TIME_EXCEEDED})
_HINTS = {
    Reason.TOKEN_INVALID: (
        ", for example because it is served for another endpoint than it is registered with,"
        " or with the keys of another mesh"
    ),
    Reason.CALLER_NOT_ALLOWED: ", for example because it is not served for this tenant",
}


def rejected(error: MeshError) -> CallFailure:
    """Return the failure of a gRPC call that ended with an error, or without an answer.

    A call that was too large for the plugin does not count against it.
    """
    if error.facts.get("larger_message") == "response":
        return ANSWER_TOO_LARGE
    return CallFailure(
        f"the call failed: {error.reason}{_HINTS.get(error.reason, '')}",
        counts_against_plugin=error.reason is not Reason.MESSAGE_TOO_LARGE,
        is_transient=error.reason not in _FINAL,
    )


def wrong_status(status: int) -> CallFailure:
    """Return the failure of a webhook that answered with another status than 200.

    Redirects are not followed. A call that was too large for the plugin does not count against it.
    Another status of success is a malformed answer.
    """
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return not_permitted(f"HTTP status {status}")
    is_too_large = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return CallFailure(
        f"the call failed: HTTP status {status}",
        counts_against_plugin=not is_too_large,
        is_transient=not is_too_large,
    )


def not_permitted(what: str) -> CallFailure:
    """Return the failure of an answer that the plugin may not give, such as for want of a grant."""
    return CallFailure(f"malformed answer: {what}")
