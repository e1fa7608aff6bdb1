"""Drafts that are offered as the answer of a run."""

import hashlib
from dataclasses import dataclass
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.runs import Run, RunState, UngrantedRevision, require_lease


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft that the runner with this epoch offers as the answer.

    `text` is judged and delivered. If `is_masked`, it holds no secret, and `offered_key` names the
    text as the runner offered it.
    """

    run_id: str
    epoch: int
    entry_id: str
    text: str
    usage: dict[str, Any]
    has_final_effects: bool = False
    is_last_turn: bool = False
    is_masked: bool = False
    offered_key: str = ""

    @property
    def text_key(self) -> str:
        """Name the text as the text of this entry."""
        return f"{self.entry_id}:{hashlib.sha256(self.text.encode()).hexdigest()}"

    @property
    def dispatch_request_id(self) -> str:
        """Name the question that the hooks answer."""
        return f"{self.run_id}:{self.text_key}:{int(self.has_final_effects)}{int(self.is_last_turn)}"


@dataclass(frozen=True, slots=True)
class Revision:
    """Plugins sent the draft back with an instruction."""

    instruction: str
    number: int
    max_revision_count: int
    plugins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """No plugin sends the draft back. `capped_revisions` were requested and not granted.

    The plugins in `finalized_by` declared the draft final.
    """

    capped_revisions: tuple[UngrantedRevision, ...] = ()
    finalized_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessagesPending:
    """Unread messages keep the draft from becoming the answer."""

    count: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A caller interrupted the run, so that no draft becomes its answer."""


def is_answer(run: Run, draft: Draft) -> bool:
    """Return whether the run has succeeded with this draft, offered at this epoch.

    An earlier runner may have offered the same entry before it lost the run. It did not end the
    run.
    """
    return (
        run.state == RunState.SUCCEEDED and run.draft_entry_id == draft.entry_id and run.epoch == draft.epoch
    )


def decided_text_key_of(run: Run, draft: Draft) -> str:
    """Return the key of the text with which this draft was decided; empty if it was not decided."""
    return run.decided_text_key if run.decided_entry_id == draft.entry_id else ""


def require_decided_text(run: Run, draft: Draft) -> None:
    """Raise RUN_STATE if this draft was decided with another text."""
    if decided_text_key_of(run, draft) not in ("", draft.text_key, draft.offered_key):
        raise MeshError(
            Reason.RUN_STATE,
            f"draft {draft.entry_id} was decided to be the answer of run {draft.run_id} with another text; "
            "offer the text that was judged",
            facts={"run_id": draft.run_id, "draft_entry_id": draft.entry_id},
        )


def is_decided(run: Run) -> bool:
    """Return whether a draft of the run is being made its answer."""
    return run.state == RunState.FINALIZING and run.decided_entry_id != ""


def require_open(run: Run, draft: Draft) -> None:
    """Raise RUN_LEASE_LOST unless the run is held at the draft's epoch.

    Raise RUN_STATE if the run is being ended with another draft.
    """
    require_lease(run, draft.epoch)
    if is_decided(run) and run.decided_entry_id != draft.entry_id:
        raise MeshError(
            Reason.RUN_STATE,
            f"run {draft.run_id} is being ended with another draft",
            facts={"run_id": draft.run_id, "draft_entry_id": run.decided_entry_id},
        )


def require_current(run: Run, draft: Draft) -> None:
    """Raise RUN_STATE for a superseded draft: no later run would read such an answer."""
    if draft.entry_id not in run.superseded_entry_ids:
        return
    raise MeshError(
        Reason.RUN_STATE,
        f"draft {draft.entry_id} was sent back or withdrawn, and no later context has it; "
        "append the answer again, and offer that entry",
        facts={"run_id": draft.run_id, "draft_entry_id": draft.entry_id},
    )
