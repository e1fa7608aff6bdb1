"""Build the content of one attempt: which images it sends, and what it says about earlier
attempts.
"""

from dataclasses import dataclass

from spawnmesh_model_router.clients.providers.provider_request import (
    ProviderRequest,
    with_named_images,
    with_notice,
    without_images,
)
from spawnmesh_model_router.clients.providers.thinking import thinking_setting
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.images import ImageOutcome, RetryImages, image_outcome, images_for_attempt
from spawnmesh_model_router.domain.partial import notice
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.operations.failover.progress import ChainProgress

_IMAGE_NOTES = {
    ImageOutcome.WITHHELD: "images left out: they were given to another provider, or refused by it",
    ImageOutcome.STRIPPED: "images left out: the model cannot see",
}


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The request as one attempt sends it. If `images` is REFUSED, it must not be sent.

    `image_provider` was given the images that a switch to this provider withholds; empty if it
    withholds none.
    """

    request: ProviderRequest
    images: ImageOutcome
    prompt_image_detection_suppressed: bool
    mentions_partial_execution: bool
    thinking: ThinkingLevel | None
    image_provider: str = ""

    @property
    def image_note(self) -> str:
        """Return a note for people on images that are left out; empty if none are."""
        return _IMAGE_NOTES.get(self.images, "")


def plan_attempt(progress: ChainProgress, model: ModelRef, config: RouterConfig) -> AttemptPlan:
    """Return the plan of the next attempt at `model`."""
    routing, request = progress.routing, progress.request
    setting = thinking_setting(request, config.providers[model.provider].kind, config.models[str(model)])
    thinking = setting.level if setting is not None else None
    if not (routing.has_images or progress.is_retry):
        return AttemptPlan(request, ImageOutcome.NO_IMAGES, False, False, thinking)
    allowed = _images_allowed(progress, model)
    request, outcome = _apply(progress, model, allowed, can_see=config.models[str(model)].vision)
    notice_text = _notice(progress, model)
    first = progress.image_provider
    withheld = outcome is ImageOutcome.WITHHELD and not allowed.keep_images
    return AttemptPlan(
        with_notice(request, notice_text) if notice_text else request,
        outcome,
        allowed.suppress_prompt_image_detection,
        bool(notice_text),
        thinking,
        first if withheld and first is not None and first != model.provider else "",
    )


def _images_allowed(progress: ChainProgress, model: ModelRef) -> RetryImages:
    boundary = progress.routing.image_boundary
    return images_for_attempt(
        is_retry=progress.is_retry or (boundary is not None and boundary.last_index is None),
        previous_reason=progress.previous_reason or progress.routing.earlier.previous_reason,
        provider=model.provider,
        first_provider=progress.image_provider,
    )


def _apply(
    progress: ChainProgress, model: ModelRef, allowed: RetryImages, *, can_see: bool
) -> tuple[ProviderRequest, ImageOutcome]:
    """Return the request with the images that the attempt may send, and what happened to them."""
    routing, request = progress.routing, progress.request
    if routing.has_images and not allowed.keep_images:
        return without_images(request), ImageOutcome.WITHHELD
    outcome = image_outcome(has_images=routing.has_images, can_see=can_see, policy=routing.blind_model_policy)
    if outcome is ImageOutcome.STRIPPED:
        return without_images(request), outcome
    boundary = routing.image_boundary
    if outcome is ImageOutcome.SENT and boundary is not None and boundary.excludes(model.provider):
        kept = without_images(request, boundary.last_index)
        sent_all = kept.image_count == request.image_count
        return with_named_images(kept), outcome if sent_all else ImageOutcome.WITHHELD
    return with_named_images(request) if outcome is ImageOutcome.SENT else request, outcome


def _notice(progress: ChainProgress, model: ModelRef) -> str | None:
    if not progress.is_retry:
        return None
    return notice(
        progress.routing.earlier.done,
        provider=model.provider,
        first_provider=progress.first_provider or model.provider,
        idempotent=progress.routing.idempotent_tools,
    )
