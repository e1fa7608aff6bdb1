"""The events of a chain of model calls, in order."""

from dataclasses import dataclass, field
from datetime import datetime

from spawnmesh_model_router.domain.answer import (
    Answer,
    CallPiece,
    Finished,
    HiddenOutput,
    TextPiece,
    ThoughtPiece,
    ToolCall,
    Usage,
)
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.thinking import ThinkingLevel


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A call of a candidate begins. `number` counts from 1 over the whole chain."""

    number: int
    model: ModelRef
    images: ImageOutcome = ImageOutcome.NO_IMAGES
    prompt_image_detection_suppressed: bool = False
    mentions_partial_execution: bool = False
    thinking: ThinkingLevel | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of a candidate.

    `reason` is None if it succeeded. `http_status` is 0 if there was no HTTP error.
    """

    number: int
    model: ModelRef
    start_time: datetime
    end_time: datetime
    reason: FailoverReason | None = None
    http_status: int = 0


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A candidate failed before its first output. Pieces of thoughts and calls are no output."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class DiscardedAnswer:
    """The usage of an answer without output: one that is empty or has only thoughts."""

    model: ModelRef
    usage: Usage


UsageReport = DiscardedAnswer | HiddenOutput
"""A report beside the events. It is for the tenant's budget and is not sent to the caller."""

Outcomes = tuple[tuple[str, Outcome], ...]
"""The name and the outcome of every candidate of a chain, in order."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A candidate answered completely."""

    model: ModelRef
    answer: Answer
    finished: Finished
    outcomes: Outcomes
    attempts: tuple[Attempt, ...]
    images: ImageOutcome
    thinking: ThinkingLevel | None = None
    image_provider: str = ""
    """The provider that was given the images that a switch of the provider withheld."""
    charged: ChargedUsage = field(default_factory=ChargedUsage)
    """The tokens of the answer, with estimates for counts that are missing, and their cost."""
    failed_usage: ChargedUsage = field(default_factory=ChargedUsage)
    """The tokens of the attempts that failed before, and their cost."""


Event = AttemptStarted | TextPiece | ThoughtPiece | CallPiece | ToolCall | AttemptFailed | Completed
