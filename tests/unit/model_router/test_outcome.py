"""The outcome of a candidate, as the response and the errors report it."""

from datetime import UTC, datetime

import pytest
from spawnmesh_model_router.domain.candidates import (
    Capability,
    Cooling,
    Incapable,
    Skipped,
    SkipReason,
    Tried,
    UnknownModel,
    Verdict,
)
from spawnmesh_model_router.domain.cooldown import Audience
from spawnmesh_model_router.domain.outcome import Outcome, outcome_of
from spawnmesh_model_router.domain.reasons import FailoverReason

UNTIL = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Tried(None), Outcome("ANSWERED", detail="why")),
        (Tried(FailoverReason.TIMEOUT), Outcome("FAILED", FailoverReason.TIMEOUT, detail="why")),
        (
            Cooling(UNTIL, FailoverReason.RATE_LIMIT),
            Outcome("COOLING", FailoverReason.RATE_LIMIT, UNTIL, audience=Audience.ALL_TENANTS),
        ),
        (
            Cooling(UNTIL, FailoverReason.RATE_LIMIT, Audience.TENANT),
            Outcome(
                "COOLING",
                FailoverReason.RATE_LIMIT,
                UNTIL,
                "after failures of this tenant's calls",
                audience=Audience.TENANT,
            ),
        ),
        (
            Incapable((Capability.IMAGES, Capability.TOOLS)),
            Outcome("INCAPABLE", detail="cannot take images and tools"),
        ),
        (
            Incapable((Capability.CONTEXT_WINDOW, Capability.TOOLS)),
            Outcome(
                "INCAPABLE",
                FailoverReason.CONTEXT_OVERFLOW,
                detail="cannot take tools; its context window cannot hold the request",
            ),
        ),
        (
            Skipped(SkipReason.NO_CREDENTIAL),
            Outcome("INCAPABLE", FailoverReason.AUTH, detail="no credential of its provider can be read"),
        ),
        (Skipped(SkipReason.NOT_NEEDED), Outcome("NOT_NEEDED")),
        (
            Skipped(SkipReason.CHAIN_STOPPED),
            Outcome("NOT_NEEDED", detail="the request itself is at fault"),
        ),
        (UnknownModel("x/y"), Outcome("NOT_NEEDED")),
    ],
)
def test_verdict_has_its_outcome(verdict: Verdict, outcome: Outcome) -> None:
    assert outcome_of(verdict, "why") == outcome


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome("ANSWERED"), "ANSWERED"),
        (Outcome("FAILED", FailoverReason.TIMEOUT), f"FAILED {FailoverReason.TIMEOUT.value}"),
        (
            Outcome("COOLING", FailoverReason.AUTH, UNTIL),
            f"COOLING {FailoverReason.AUTH.value} until 2026-01-02T03:04:05+00:00",
        ),
    ],
)
def test_outcome_is_shown_with_its_reason_and_its_end(outcome: Outcome, text: str) -> None:
    assert str(outcome) == text
