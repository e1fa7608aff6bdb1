"""Failures of a plugin call: their texts, and which ones its circuit breaker counts."""

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import STATUS_OF
from spawnmesh_hook.domain.call_failures import (
    ANSWER_NOT_JSON,
    ANSWER_TOO_LARGE,
    ANSWER_UNREADABLE,
    BULKHEAD_FULL,
    CANCELLED,
    CIRCUIT_OPEN,
    NO_ADDRESS,
    NO_CONNECTION,
    NO_TIME_LEFT,
    SILENT,
    STOPPED_ANSWERING,
    CallFailure,
    deadline_too_short,
    dns_lookup_failed,
    not_permitted,
    rejected,
    timed_out,
    wrong_status,
)


@pytest.mark.parametrize(
    "failure",
    [
        NO_ADDRESS,
        ANSWER_TOO_LARGE,
        ANSWER_UNREADABLE,
        ANSWER_NOT_JSON,
        NO_CONNECTION,
        timed_out(15),
        rejected(MeshError(Reason.TOKEN_INVALID, "x")),
        wrong_status(500),
        not_permitted("x"),
    ],
)
def test_fault_of_the_plugin_counts_against_it(failure: CallFailure) -> None:
    assert failure.counts_against_plugin is True
    assert failure.decision == "failed"


@pytest.mark.parametrize(
    "failure",
    [
        NO_TIME_LEFT,
        CANCELLED,
        BULKHEAD_FULL,
        CIRCUIT_OPEN,
        SILENT,
        STOPPED_ANSWERING,
        deadline_too_short(0.25),
        dns_lookup_failed("x"),
        rejected(MeshError(Reason.MESSAGE_TOO_LARGE, "x")),
        wrong_status(413),
    ],
)
def test_fault_of_the_caller_does_not_count_against_the_plugin(failure: CallFailure) -> None:
    assert failure.counts_against_plugin is False
    assert failure.decision == ("skipped" if failure in (CIRCUIT_OPEN, SILENT) else "failed")


@pytest.mark.parametrize(
    "failure",
    [
        NO_TIME_LEFT,
        CANCELLED,
        BULKHEAD_FULL,
        CIRCUIT_OPEN,
        SILENT,
        STOPPED_ANSWERING,
        NO_ADDRESS,
        NO_CONNECTION,
        timed_out(15),
        deadline_too_short(0.25),
        dns_lookup_failed("x"),
        *(
            rejected(MeshError(reason, "x"))
            for reason in STATUS_OF
            if reason not in (Reason.MESSAGE_TOO_LARGE, Reason.PROCESSING_TIME_EXCEEDED)
        ),
        *(
            wrong_status(status)
            for status in (302, 400, 401, 403, 404, 408, 429, 500, 501, 502, 503, 504, 599)
        ),
    ],
)
def test_plugin_that_gave_no_answer_may_give_one_later(failure: CallFailure) -> None:
    assert failure.is_transient


@pytest.mark.parametrize(
    "failure",
    [
        ANSWER_TOO_LARGE,
        ANSWER_UNREADABLE,
        ANSWER_NOT_JSON,
        not_permitted("x"),
        rejected(MeshError(Reason.MESSAGE_TOO_LARGE, "x")),
        rejected(MeshError(Reason.PROCESSING_TIME_EXCEEDED, "x")),
        wrong_status(202),
        wrong_status(413),
    ],
)
def test_repeat_of_a_malformed_answer_or_of_a_too_large_call_is_not_worth_a_wait(
    failure: CallFailure,
) -> None:
    assert not failure.is_transient


def test_texts_say_what_failed() -> None:
    assert timed_out(1 / 3).error == "no answer within 0.333 s"
    assert deadline_too_short(0.25).error == "no answer in the 0.25 s that were left for it"
    assert wrong_status(302).error == "the call failed: HTTP status 302"
    assert wrong_status(204).error == "malformed answer: HTTP status 204"
    assert not_permitted("no grant").error == "malformed answer: no grant"
    assert rejected(MeshError(Reason.CALLER_NOT_ALLOWED, "x")).error == (
        "the call failed: CALLER_NOT_ALLOWED, for example because it is not served for this tenant"
    )
    assert rejected(MeshError(Reason.NOT_FOUND, "secret")).error == "the call failed: NOT_FOUND"
