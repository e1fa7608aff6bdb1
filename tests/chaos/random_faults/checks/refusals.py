"""Refusals of the load's calls: each is expected, or is a failure of the product."""

from collections.abc import Mapping

from spawnmesh_core.reasons import Reason

from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call, Outcome

EXPECTED: Mapping[str, frozenset[Reason]] = {
    # The writers of the load take the transcript over from each other.
    "append": frozenset({Reason.WRITER_CLAIM_LOST}),
    "acquire": frozenset({Reason.WRITER_CLAIM_LOST}),
    # The lease ended in an outage, and another runner claimed the run, and then its transcript.
    "harness": frozenset({Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST}),
    # Another person decided before, the time for the decision was over, or the run had ended.
    "decide": frozenset({Reason.APPROVAL_CLOSED}),
    # Another person raised the budget before, or this call did without an answer.
    "raise": frozenset({Reason.ETAG_DIFFERS}),
    # The session belongs to another tenant.
    "pry": frozenset({Reason.NOT_FOUND}),
}
"""The reasons that may refuse each operation. All other operations act on what was accepted, with
valid tokens, and nothing may refuse them.
"""
_BUGS = ("INTERNAL", "DATA_LOSS", "INVALID_ARGUMENT")


def check(facts: Facts) -> list[str]:
    """Report calls that failed as by a bug, and calls that were refused although they are well
    formed and act on what exists.
    """
    return [
        f"{call.operation} at {call.start:.1f} s: {call.status} {call.reason}: {call.message} {call.given}"
        for call in facts.calls
        if call.status in _BUGS or _is_wrongly_refused(call)
    ]


def _is_wrongly_refused(call: Call) -> bool:
    return call.outcome is Outcome.REFUSED and call.reason not in EXPECTED.get(call.operation, ())
