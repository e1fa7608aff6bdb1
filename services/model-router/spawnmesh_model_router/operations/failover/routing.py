"""Build the chain of a request, and decide which of its candidates may be called."""

from collections.abc import Iterable
from datetime import datetime

from spawnmesh_model_router.domain.candidates import (
    Candidate,
    Capability,
    ModelRef,
    Ready,
    Skipped,
    SkipReason,
    Verdict,
    build_chain,
    skip_after,
)
from spawnmesh_model_router.domain.errors import unknown_model
from spawnmesh_model_router.domain.router_config import Model, RouterConfig
from spawnmesh_model_router.domain.routing_request import ChainLink, RoutingRequest
from spawnmesh_model_router.operations.failover.availability import Availability
from spawnmesh_model_router.operations.failover.progress import ChainProgress


def build_links(config: RouterConfig, routing: RoutingRequest) -> tuple[ChainLink, ...]:
    """Return the chain.

    Raises MeshError UNKNOWN_MODEL if a name in the request resolves to no configured model.
    """
    for name in filter(None, (routing.model, *routing.fallback_models)):
        if config.resolve_model(name) is None:
            raise unknown_model(name)
    # A strict request that names no model has the primary as its only candidate.
    requested = routing.model or (config.primary if routing.strict else None)
    fallbacks = routing.fallback_models or (() if routing.only_named else config.fallbacks)
    chain = build_chain(
        requested,
        fallbacks,
        config.primary,
        config.aliases,
        strict=routing.strict,
        only_named=routing.only_named,
    )
    return tuple(
        _link(candidate, candidate.ref, config.models[str(candidate.ref)], routing)
        for candidate in chain
        if candidate.ref is not None
    )


def _link(candidate: Candidate, ref: ModelRef, model: Model, routing: RoutingRequest) -> ChainLink:
    fits = routing.size.fits(model.context_window, model.max_output, can_see=model.vision)
    return ChainLink(candidate, ref, model.context_window, fits, routing.needs <= model.offers)


def assess_link(
    availability: Availability, progress: ChainProgress, link: ChainLink, now: datetime
) -> Ready | Verdict:
    """Return Ready if the candidate may be called after the attempts so far, otherwise its
    verdict.
    """
    for attempt in progress.attempts:
        if attempt.reason is not None and (skipped := skip_after(attempt.model, attempt.reason, link.model)):
            return skipped
    if progress.routing.stays_with_provider and _turn_provider(progress) != link.model.provider:
        return Skipped(SkipReason.SIDE_EFFECTS)
    needs = progress.routing.needs
    if not _may_hold(progress, link):
        needs |= {Capability.CONTEXT_WINDOW}
    return availability.assess(link.candidate, link.model, needs, progress.routing.tenant_id, now)


def has_larger_window(chain: Iterable[ChainLink], context_window: int) -> bool:
    """Return whether a candidate of the chain has a larger context window."""
    return any(
        link.context_window > context_window and not link.candidate.excluded_by_strict for link in chain
    )


def _may_hold(progress: ChainProgress, link: ChainLink) -> bool:
    """Return whether the context window of the candidate may hold the request.

    A window that is not larger than one that overflowed does not. An estimate decides only if it
    leaves another candidate. Otherwise the provider decides, which counts with its own vocabulary.
    """
    if link.context_window <= progress.overflowed_window:
        return False
    if link.fits:
        return True
    others = (other for other in progress.chain if not other.candidate.excluded_by_strict)
    is_left = any(other.fits and other.is_capable for other in others)
    return progress.routing.size.may_fit(link.context_window) and not is_left


def _turn_provider(progress: ChainProgress) -> str:
    """Return the provider of the turn.

    That is the provider of the first attempt. Without one it is the provider of the newest answer,
    if it is in the chain, or the first provider of the chain.
    """
    chain = [link.model.provider for link in progress.chain if not link.candidate.excluded_by_strict]
    last = progress.routing.last_answer_provider
    return progress.first_provider or (last if last in chain else chain[0])
