"""How the answers of several plugins about one draft become one decision."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_REVISION_COUNT = 3
REASON_MAX_BYTES = 4096
"""What the contract allows for one reason, joined or not."""
_BETWEEN_REASONS = "\n\n"


class FinalizeAnswer(StrEnum):
    """What a plugin says to a draft, and what all of them say together."""

    CONTINUE = "continue"
    REVISE = "revise"
    FINALIZE = "finalize"


@dataclass(frozen=True, slots=True)
class Denial:
    """A plugin's no to a spawn; `reason` is told to whoever asked for the session."""

    plugin: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One plugin's answer to a draft. `idempotency_key` names a revise within plugin and run; empty where only the run's bound holds."""

    plugin: str
    answer: FinalizeAnswer
    reason: str = ""
    idempotency_key: str = ""
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class Merged:
    """What the plugins say together; `decided_by` is in order of priority, `revises` are what a granted revision is counted for."""

    answer: FinalizeAnswer
    reason: str = ""
    decided_by: tuple[str, ...] = ()
    revises: tuple[Verdict, ...] = ()
    spent: bool = False
    """A revise was left out because its key has had its attempts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is answered and kept. `revision_number` is 0 unless it is a revise; `capped` tells that a revise was wanted and not granted."""

    answer: FinalizeAnswer
    reason: str
    decided_by: tuple[str, ...]
    revision_number: int
    capped: bool


def merge(verdicts: Sequence[Verdict], spent: Collection[tuple[str, str]] = ()) -> Merged:
    """Merges answers given in order of priority.

    The first revise or finalize decides against all below it. A revise is joined by the revises below, until somebody says finalize: nobody
    below a finalize has a say, and a finalize below a revise undoes nothing. Joined reasons are paragraphs, cut at REASON_MAX_BYTES. A
    revise whose plugin and key are among `spent` counts as a continue.
    """
    revises: list[Verdict] = []
    left_out = False
    for verdict in verdicts:
        if verdict.answer is FinalizeAnswer.REVISE:
            if (verdict.plugin, verdict.idempotency_key) in spent:
                left_out = True
            else:
                revises.append(verdict)
        elif ends_asking(verdict):
            if not revises:
                return Merged(verdict.answer, verdict.reason, (verdict.plugin,))
            break
    if not revises:
        return Merged(FinalizeAnswer.CONTINUE, spent=left_out)
    reason = _BETWEEN_REASONS.join(verdict.reason for verdict in revises)
    return Merged(FinalizeAnswer.REVISE, _cut(reason), tuple(verdict.plugin for verdict in revises), tuple(revises))


def ends_asking(verdict: Verdict) -> bool:
    """Whether nobody below is to be asked after this answer."""
    return verdict.answer is FinalizeAnswer.FINALIZE


def grant(merged: Merged, revision_number: int | None) -> Decision:
    """The decision, given the number that a wanted revise gets in its run; None when the run may have no more."""
    if merged.answer is not FinalizeAnswer.REVISE:
        return Decision(merged.answer, merged.reason, merged.decided_by, 0, merged.spent)
    if revision_number is None:
        return Decision(FinalizeAnswer.CONTINUE, "", (), 0, True)
    return Decision(merged.answer, merged.reason, merged.decided_by, revision_number, False)


def _cut(reason: str) -> str:
    return reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")
