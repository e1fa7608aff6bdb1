"""What came of a call of a plugin: a valid answer, or why there was none. No text in here is the plugin's own."""

from dataclasses import dataclass
from http import HTTPStatus

import protovalidate
from google.protobuf.message import Message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

MAX_ANSWER_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a plugin gave no valid answer, without content; `decision` names it in the log.

    `blamed` tells whether its circuit breaker counts it.
    """

    error: str
    decision: str = "failed"
    blamed: bool = True


NEVER_ASKED = Failure("no time was left to call it", blamed=False)
ABANDONED = Failure("the call was given up before it answered", blamed=False)
BUSY = Failure("it had as many calls as it takes at a time", blamed=False)
CUT_OFF = Failure("it failed too often and is left alone for a while", decision="skipped", blamed=False)
LED_NOWHERE = Failure("its endpoint's name has no address")
TOO_LARGE = Failure(f"malformed answer: more than {MAX_ANSWER_BYTES} bytes")
UNREADABLE = Failure("malformed answer: no message of the contract")
NOT_JSON = Failure("malformed answer: not the JSON of the contract")
UNREACHED = Failure("the call failed: no connection")
UNSIGNED = Failure("this service has no key to sign its calls with", blamed=False)


def too_slow(seconds: float) -> Failure:
    """No answer came in the `seconds` that are its own, of which it had its fair share."""
    return Failure(f"no answer within {seconds:.3g} s")


def too_little_time(seconds: float) -> Failure:
    """No answer came in the `seconds` that were left for it: too few to hold that against it."""
    return Failure(f"no answer in the {seconds:.3g} s that were left for it", blamed=False)


def not_looked_up(why: str) -> Failure:
    """Nobody knows where its endpoint leads: the mesh's look-up failed, and tells nothing of the plugin."""
    return Failure(f"its endpoint's name was not looked up: {why}", blamed=False)


_MEANINGS = {
    Reason.TOKEN_INVALID: ", as where it is served for another endpoint than it is registered with, or with the keys of another mesh",
    Reason.CALLER_NOT_ALLOWED: ", as where it is not served for this tenant",
}


def refused(error: MeshError) -> Failure:
    """The call was answered with an error, or with nothing. One that is too large for the plugin tells of who made it so."""
    meaning = _MEANINGS.get(error.reason, "")
    return Failure(f"the call failed: {error.reason}{meaning}", blamed=error.reason is not Reason.MESSAGE_TOO_LARGE)


def wrong_status(status: int) -> Failure:
    """A webhook answered with another status than 200; a redirect is followed nowhere. As `refused` does for a call that is too large."""
    return Failure(f"the call failed: HTTP status {status}", blamed=status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def not_allowed(what: str) -> Failure:
    """The answer is one that needs a grant which the plugin does not have."""
    return Failure(f"malformed answer: {what}")


def malformed(answer: Message) -> Failure | None:
    """What of the answer breaks the contract: which field and which rule; None for a valid one."""
    if answer.ByteSize() > MAX_ANSWER_BYTES:
        return TOO_LARGE
    found = protovalidate.collect_violations(answer)
    if not found:
        return None
    rules = []
    for violation in found[:5]:
        path = violation.proto.field.elements if violation.proto.field else ()
        rules.append(f"{'.'.join(element.field_name for element in path)} ({violation.proto.rule_id})")
    return Failure("malformed answer: " + ", ".join(rules))
