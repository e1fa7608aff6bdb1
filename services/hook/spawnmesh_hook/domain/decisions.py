"""Merge the answers of several plugins about one draft into one decision."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_REVISION_COUNT = 3
REASON_MAX_BYTES = 4096
"""The bound of the proto for one reason, also after joining."""
_SEPARATOR = "\n\n"


class FinalizeAnswer(StrEnum):
    """The answer of a plugin to a draft, and the merged answer of all plugins."""

    CONTINUE = "continue"
    REVISE = "revise"
    FINALIZE = "finalize"


@dataclass(frozen=True, slots=True)
class Denial:
    """A plugin denies a spawn. The client that asked for the session reads `reason`."""

    plugin: str
    reason: str


@dataclass(frozen=True, slots=True)
class PluginDecision:
    """The answer of a plugin to a draft.

    `idempotency_key` names a revise within the plugin and the run. If it is empty, only the bound
    of the run limits the revise.
    """

    plugin: str
    answer: FinalizeAnswer
    reason: str = ""
    idempotency_key: str = ""
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class MergedDecision:
    """The merged answer. `decided_by` is in order of priority.

    A granted revision is counted for each of `revises`. `key_exhausted` says that a revise was
    ignored because its idempotency key has no attempts left.
    """

    answer: FinalizeAnswer
    reason: str = ""
    decided_by: tuple[str, ...] = ()
    revises: tuple[PluginDecision, ...] = ()
    key_exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a draft, as it is stored and returned.

    `revision_number` is 0 unless the answer is a revise. `capped` says that a plugin wanted a
    revise which was not granted.
    """

    answer: FinalizeAnswer
    reason: str
    decided_by: tuple[str, ...]
    revision_number: int
    capped: bool


def merge_decisions(
    plugin_decisions: Sequence[PluginDecision], exhausted_keys: Collection[tuple[str, str]] = ()
) -> MergedDecision:
    """Merge answers that are given in order of priority.

    - The first revise or finalize decides against all answers below it.
    - A revise is joined by the revises below it, up to the first finalize.
    - Answers below a finalize have no effect. A finalize below a revise does not undo the revise.
    - Reasons are joined as paragraphs and cut at REASON_MAX_BYTES.
    - A revise whose plugin and key are in `exhausted_keys` counts as a continue.
    """
    revises: list[PluginDecision] = []
    key_exhausted = False
    for decision in plugin_decisions:
        if decision.answer is FinalizeAnswer.REVISE:
            if (decision.plugin, decision.idempotency_key) in exhausted_keys:
                key_exhausted = True
            else:
                revises.append(decision)
        elif ends_dispatch(decision):
            if not revises:
                return MergedDecision(decision.answer, decision.reason, (decision.plugin,))
            break
    if not revises:
        return MergedDecision(FinalizeAnswer.CONTINUE, key_exhausted=key_exhausted)
    reason = _SEPARATOR.join(decision.reason for decision in revises)
    return MergedDecision(
        FinalizeAnswer.REVISE,
        reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore"),
        tuple(decision.plugin for decision in revises),
        tuple(revises),
    )


def ends_dispatch(decision: PluginDecision) -> bool:
    """Return whether the plugins below this answer are not called."""
    return decision.answer is FinalizeAnswer.FINALIZE


def decide_draft(merged: MergedDecision, revision_number: int | None) -> Decision:
    """Return the decision about the draft.

    `revision_number` is the number that a wanted revise gets in its run, or None if the run may
    have no more revisions.
    """
    if merged.answer is not FinalizeAnswer.REVISE:
        return Decision(merged.answer, merged.reason, merged.decided_by, 0, merged.key_exhausted)
    if revision_number is None:
        return Decision(FinalizeAnswer.CONTINUE, "", (), 0, True)
    return Decision(merged.answer, merged.reason, merged.decided_by, revision_number, False)
