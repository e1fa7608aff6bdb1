"""The chain of a request, and who of it may be asked now."""

from dataclasses import replace
from datetime import datetime

from spawnmesh_model_router.ask import Ask, Link
from spawnmesh_model_router.availability import Availability
from spawnmesh_model_router.carry import carry
from spawnmesh_model_router.config import RouterConfig
from spawnmesh_model_router.domain.candidates import (
    Capability,
    Incapable,
    Ready,
    Skipped,
    SkipReason,
    Verdict,
    build_chain,
    skip_after,
)
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.outcome import Outcome, outcome_of
from spawnmesh_model_router.errors import unknown_model
from spawnmesh_model_router.events import Outcomes
from spawnmesh_model_router.parts import Parts
from spawnmesh_model_router.progress import Progress


def build_links(config: RouterConfig, ask: Ask) -> tuple[Link, ...]:
    """The chain. Raises MeshError UNKNOWN_MODEL for a name in the request that means no listed model."""
    for name in filter(None, (ask.model, *ask.fallback_models)):
        if config.model_called(name) is None:
            raise unknown_model(name)
    # A strict request that names no model asks the primary and nobody else.
    requested = ask.model or (config.primary if ask.strict else None)
    fallbacks = ask.fallback_models or (() if ask.only_named else config.fallbacks)
    chain = build_chain(
        requested, fallbacks, config.primary, config.aliases, strict=ask.strict, only_named=ask.only_named
    )
    return tuple(Link(candidate, candidate.ref) for candidate in chain if candidate.ref is not None)


def judge(availability: Availability, ask: Ask, progress: Progress, link: Link, now: datetime) -> Ready | Verdict:
    """Whether the candidate may be asked after what has been tried so far, or its verdict."""
    for attempt in progress.attempts:
        if attempt.reason is not None and (skipped := skip_after(attempt.model, attempt.reason, link.model)):
            return skipped
    if ask.stays_with_provider and _begun_at(ask, progress) != link.model.provider:
        return Skipped(SkipReason.SIDE_EFFECTS)
    return availability.assess(link.candidate, link.model, ask.needs, now)


def _begun_at(ask: Ask, progress: Progress) -> str:
    """The provider of the turn: where it was first asked, where its newest answer is from, or else where the chain begins."""
    known = ask.earlier.first_provider or progress.first_provider
    chain = [link.model.provider for link in progress.chain if not link.candidate.excluded_by_strict]
    return known or (ask.question.spoke_last if ask.question.spoke_last in chain else chain[0])


def explain(parts: Parts, ask: Ask) -> Outcomes:
    """What asking would do, by what is known now; nobody is called. Raises MeshError UNKNOWN_MODEL."""
    progress = Progress(build_links(parts.config, ask))
    now = parts.clock()
    return tuple((str(link.model), _explained(parts, ask, progress, link, now)) for link in progress.chain)


def _explained(parts: Parts, ask: Ask, progress: Progress, link: Link, now: datetime) -> Outcome:
    verdict = judge(parts.availability, ask, progress, link, now)
    if not isinstance(verdict, Ready):
        outcome = outcome_of(verdict)
        routed = isinstance(verdict, Incapable) and Capability.IMAGES in verdict.missing
        return replace(outcome, images=ImageOutcome.ROUTED_AROUND) if routed else outcome
    carried = carry(ask, progress, link.model, parts.config)
    return Outcome("PROBE" if verdict.probe else "READY", images=carried.images, thinking=carried.thinking)
