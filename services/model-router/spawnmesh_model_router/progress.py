"""How far a chain has been asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spawnmesh_model_router.ask import Link
from spawnmesh_model_router.domain.candidates import ModelRef, SkipReason, Tried, Verdict, close_chain
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import outcome_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.events import Attempt, Outcomes


@dataclass(slots=True)
class Progress:
    """The chain, every try so far, and the verdicts there are."""

    chain: Sequence[Link]
    attempts: list[Attempt] = field(default_factory=list)
    verdicts: dict[ModelRef, Verdict] = field(default_factory=dict)
    images: dict[ModelRef, ImageOutcome] = field(default_factory=dict)
    _details: dict[ModelRef, str] = field(default_factory=dict)

    @property
    def first_provider(self) -> str | None:
        """Where the first try went."""
        return self.attempts[0].model.provider if self.attempts else None

    @property
    def previous_reason(self) -> FailoverReason | None:
        """Why the latest try failed."""
        return self.attempts[-1].reason if self.attempts else None

    def tried(self, model: ModelRef, reason: FailoverReason | None, *details: str) -> None:
        """The verdict of a candidate that was called."""
        self.verdicts[model] = Tried(reason)
        self._details[model] = "; ".join(detail for detail in details if detail)

    def outcomes(self, rest: SkipReason) -> Outcomes:
        """Every candidate with its outcome; `rest` is for those that were not reached."""
        closed = close_chain([link.candidate for link in self.chain], self.verdicts, rest)
        return tuple(
            (
                str(link.model),
                replace(
                    outcome_of(verdict, self._details.get(link.model, "")),
                    images=self.images.get(link.model, ImageOutcome.NO_IMAGES),
                ),
            )
            for link, (_, verdict) in zip(self.chain, closed, strict=True)
        )
