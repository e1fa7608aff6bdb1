"""The outcome of a candidate, as the response and the errors report it."""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_model_router.domain.candidates import (
    Capability,
    Cooling,
    Incapable,
    SkipReason,
    Tried,
    Verdict,
)
from spawnmesh_model_router.domain.cooldown import Audience
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.thinking import ThinkingLevel

_SKIPPED = {
    SkipReason.NOT_NEEDED: "",
    SkipReason.STRICT: "the request asks for one model alone",
    SkipReason.PROVIDER_CERTIFICATE: "the provider's certificate is not trusted",
    SkipReason.CHAIN_STOPPED: "the request itself is at fault",
    SkipReason.SIDE_EFFECTS: (
        "the turn did what must not be done twice, and the tenant allows no other provider to continue it"
    ),
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate.

    `kind` is ANSWERED, FAILED, COOLING, INCAPABLE or NOT_NEEDED. If no provider is called, it may
    be READY or PROBE. `detail` is for people. `audience` is that of a cooldown.
    """

    kind: str
    reason: FailoverReason | None = None
    until: datetime | None = None
    detail: str = ""
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    thinking: ThinkingLevel | None = None
    audience: Audience | None = None

    def __str__(self) -> str:
        return " ".join(
            part for part in (self.kind, self.reason and self.reason.value, self._until()) if part
        )

    def _until(self) -> str:
        return f"until {self.until.isoformat(timespec='seconds')}" if self.until is not None else ""


def outcome_of(verdict: Verdict, detail: str = "") -> Outcome:
    """Return the outcome of the verdict. `detail` describes a candidate that was called."""
    if isinstance(verdict, Tried):
        return Outcome("FAILED" if verdict.reason else "ANSWERED", verdict.reason, detail=detail)
    if isinstance(verdict, Cooling):
        own = verdict.audience is Audience.TENANT
        detail = "after failures of this tenant's calls" if own else ""
        return Outcome("COOLING", verdict.reason, verdict.until, detail, audience=verdict.audience)
    if isinstance(verdict, Incapable):
        return _incapable(verdict.missing)
    why = getattr(verdict, "why", None)
    if why is SkipReason.NO_CREDENTIAL:
        return Outcome("INCAPABLE", FailoverReason.AUTH, detail="no credential of its provider can be read")
    return Outcome("NOT_NEEDED", detail=_SKIPPED.get(why, "") if why is not None else "")


def _incapable(missing: tuple[Capability, ...]) -> Outcome:
    others = [one.value.lower() for one in missing if one is not Capability.CONTEXT_WINDOW]
    details = [f"cannot take {' and '.join(others)}"] if others else []
    if len(others) == len(missing):
        return Outcome("INCAPABLE", detail=details[0])
    details.append("its context window cannot hold the request")
    return Outcome("INCAPABLE", FailoverReason.CONTEXT_OVERFLOW, detail="; ".join(details))
