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


class RevisionCap(StrEnum):
    """The bounds of revisions, spelled as in the proto and in the database."""

    RUN = "RUN"
    OBJECTION_KEY = "OBJECTION_KEY"
    FINAL_EFFECTS = "FINAL_EFFECTS"
    LAST_TURN = "LAST_TURN"


@dataclass(frozen=True, slots=True)
class CappedRevision:
    """A plugin requested a revision that was not granted."""

    plugin: str
    cap: RevisionCap

    @property
    def explanation(self) -> str:
        """Say which bound was reached, in one line for the log."""
        return f"its revision was not granted: {_EXPLANATIONS[self.cap]}"


_EXPLANATIONS = {
    RevisionCap.RUN: f"the run had {MAX_REVISION_COUNT} revisions",
    RevisionCap.OBJECTION_KEY: "its objection key had its max_attempts",
    RevisionCap.FINAL_EFFECTS: "the run had effects that cannot be undone",
    RevisionCap.LAST_TURN: "the run has no turn left",
}


@dataclass(frozen=True, slots=True)
class Denial:
    """A plugin denies a spawn. The client that asked for the session reads `reason`."""

    plugin: str
    reason: str


@dataclass(frozen=True, slots=True)
class PluginDecision:
    """The answer of a plugin to a draft.

    `objection_key` names a revise within the plugin and the run. If it is empty, only the bound
    of the run limits the revise.
    """

    plugin: str
    answer: FinalizeAnswer
    reason: str = ""
    objection_key: str = ""
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class MergedDecision:
    """The merged answer. `decided_by` is in order of priority.

    A granted revision is counted for each of `revises`. `wanted_by` also names the plugins whose
    revise was ignored because its objection key has no attempts left.
    """

    answer: FinalizeAnswer
    reason: str = ""
    decided_by: tuple[str, ...] = ()
    revises: tuple[PluginDecision, ...] = ()
    wanted_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a draft, as it is stored and returned.

    `revision_number` is 0 unless the answer is a revise. `capped_revisions`, in order of priority,
    is empty if it is one: the draft is sent back.
    """

    answer: FinalizeAnswer
    reason: str
    decided_by: tuple[str, ...]
    revision_number: int
    capped_revisions: tuple[CappedRevision, ...] = ()


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
    wanted_by: list[str] = []
    for decision in plugin_decisions:
        if decision.answer is FinalizeAnswer.REVISE:
            wanted_by.append(decision.plugin)
            if (decision.plugin, decision.objection_key) not in exhausted_keys:
                revises.append(decision)
        elif ends_dispatch(decision):
            if not revises:
                return MergedDecision(
                    decision.answer, decision.reason, (decision.plugin,), wanted_by=tuple(wanted_by)
                )
            break
    if not revises:
        return MergedDecision(FinalizeAnswer.CONTINUE, wanted_by=tuple(wanted_by))
    reason = _SEPARATOR.join(decision.reason for decision in revises)
    return MergedDecision(
        FinalizeAnswer.REVISE,
        reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore"),
        tuple(decision.plugin for decision in revises),
        tuple(revises),
        tuple(wanted_by),
    )


def ends_dispatch(decision: PluginDecision) -> bool:
    """Return whether the plugins below this answer are not called."""
    return decision.answer is FinalizeAnswer.FINALIZE


def decide_draft(merged: MergedDecision, granted: int | RevisionCap = 0) -> Decision:
    """Return the decision about the draft.

    `granted` is the number that a wanted revise gets in its run, or the bound that refuses it.
    """
    refused: dict[str, RevisionCap] = {}
    if isinstance(granted, RevisionCap):
        refused = {revise.plugin: granted for revise in merged.revises}
    elif merged.answer is FinalizeAnswer.REVISE:
        return Decision(merged.answer, merged.reason, merged.decided_by, granted)
    capped = tuple(
        CappedRevision(plugin, refused.get(plugin, RevisionCap.OBJECTION_KEY)) for plugin in merged.wanted_by
    )
    if refused:
        return Decision(FinalizeAnswer.CONTINUE, "", (), 0, capped)
    return Decision(merged.answer, merged.reason, merged.decided_by, 0, capped)
