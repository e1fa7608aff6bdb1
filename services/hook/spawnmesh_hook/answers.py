"""What came of a call of a plugin: a valid answer, or why there was none. No text in here is the plugin's own."""

from dataclasses import dataclass

import protovalidate
from google.protobuf.message import Message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a plugin gave no valid answer, without content."""

    error: str


NEVER_ASKED = Failure("no time was left to call it")
ABANDONED = Failure("the call was given up before it answered")
LED_NOWHERE = Failure("its endpoint's name has no address")


def too_slow(seconds: float) -> Failure:
    """No answer came in the time that it had."""
    return Failure(f"no answer within {seconds:.3g} s")


def refused(error: MeshError, seconds: float) -> Failure:
    """The call was answered with an error, or with nothing."""
    if error.reason is Reason.DEADLINE_EXCEEDED:
        return too_slow(seconds)
    return Failure(f"the call failed: {error.reason}")


def malformed(answer: Message) -> Failure | None:
    """What of the answer breaks the contract: which field and which rule; None for a valid one."""
    found = protovalidate.collect_violations(answer)
    if not found:
        return None
    rules = []
    for violation in found:
        path = violation.proto.field.elements if violation.proto.field else ()
        rules.append(f"{'.'.join(element.field_name for element in path)} ({violation.proto.rule_id})")
    return Failure("malformed answer: " + ", ".join(rules))
