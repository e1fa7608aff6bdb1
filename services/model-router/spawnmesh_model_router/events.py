"""What happens while a chain is asked, in order."""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.providers.answer import Answer, Call, Finished, TextPiece, Unseen, Usage


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A candidate is being called; `number` counts from 1 over the whole chain."""

    number: int
    model: ModelRef
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    prompt_image_detection_suppressed: bool = False
    told_of_partial_execution: bool = False
    thinking: ThinkingLevel | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one candidate; `reason` is None when it answered, `http_status` 0 when it answered none."""

    number: int
    model: ModelRef
    start_time: datetime
    end_time: datetime
    reason: FailoverReason | None = None
    http_status: int = 0


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A candidate failed before its first output."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Used:
    """What an answer that is none, of thoughts alone or of nothing, used by its provider's word. For the tenant's budget, not for the caller."""

    model: ModelRef
    usage: Usage


Spending = Used | Unseen
"""What is told beside the events, for the tenant's budget alone."""

Outcomes = tuple[tuple[str, Outcome], ...]
"""Every candidate of a chain in its order, by its model's name."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A candidate answered in full."""

    model: ModelRef
    answer: Answer
    finished: Finished
    outcomes: Outcomes
    attempts: tuple[Attempt, ...]
    images: ImageOutcome
    thinking: ThinkingLevel | None = None


Event = AttemptStarted | TextPiece | Call | AttemptFailed | Completed
