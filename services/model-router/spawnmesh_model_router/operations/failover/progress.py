"""The state of one chain of model calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.candidates import (
    ModelRef,
    Skipped,
    SkipReason,
    Tried,
    Verdict,
    close_chain,
)
from spawnmesh_model_router.domain.events import Attempt, Outcomes
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import outcome_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.routing_request import ChainLink, RoutingRequest


@dataclass(slots=True)
class ChainProgress:
    """The request, its chain, every attempt so far, and the verdicts so far."""

    routing: RoutingRequest
    request: ProviderRequest
    chain: Sequence[ChainLink]
    attempts: list[Attempt] = field(default_factory=list)
    verdicts: dict[ModelRef, Verdict] = field(default_factory=dict)
    images: dict[ModelRef, ImageOutcome] = field(default_factory=dict)
    _details: dict[ModelRef, str] = field(default_factory=dict)
    _seen_attempts: int = 0

    @property
    def is_retry(self) -> bool:
        """Return whether the next attempt is not the first one of the turn."""
        return self.routing.earlier.is_retry or bool(self.attempts)

    @property
    def first_provider(self) -> str | None:
        """Return the provider of the turn's first attempt; None if there was none or it is
        unknown.
        """
        if self.routing.earlier.first_provider:
            return self.routing.earlier.first_provider
        return self.attempts[0].model.provider if self.attempts else None

    @property
    def image_provider(self) -> str | None:
        """Return the provider that was given the images; None if none was or it is unknown."""
        boundary = self.routing.image_boundary
        return boundary.provider if boundary is not None else self.first_provider

    @property
    def previous_reason(self) -> FailoverReason | None:
        """Return why the latest attempt of this chain failed."""
        return self.attempts[-1].reason if self.attempts else None

    @property
    def overflowed_window(self) -> int:
        """Return the largest context window that the request overflowed; 0 if there is none."""
        overflowed = {a.model for a in self.attempts if a.reason is FailoverReason.CONTEXT_OVERFLOW}
        return max((link.context_window for link in self.chain if link.model in overflowed), default=0)

    @property
    def holds_nowhere(self) -> bool:
        """Return whether the context window is why each candidate failed or was not called."""
        decided = [
            outcome_of(verdict) for verdict in self.verdicts.values() if not isinstance(verdict, Skipped)
        ]
        return bool(decided) and all(one.reason is FailoverReason.CONTEXT_OVERFLOW for one in decided)

    def take_failure(self) -> Attempt | None:
        """Return the latest attempt if it failed, once."""
        if len(self.attempts) == self._seen_attempts:
            return None
        self._seen_attempts = len(self.attempts)
        last = self.attempts[-1]
        return last if last.reason is not None else None

    def record_result(self, model: ModelRef, reason: FailoverReason | None, *details: str) -> None:
        """Set the verdict of a candidate that was called."""
        self.verdicts[model] = Tried(reason)
        self._details[model] = "; ".join(detail for detail in details if detail)

    def outcomes(self, unreached: SkipReason) -> Outcomes:
        """Return every candidate with its outcome.

        `unreached` is for candidates without a verdict.
        """
        closed = close_chain([link.candidate for link in self.chain], self.verdicts, unreached)
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
