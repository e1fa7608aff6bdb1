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
    """The request as one attempt sends it. If `images` is REFUSED, it must not be sent."""

    request: ProviderRequest
    images: ImageOutcome
    prompt_image_detection_suppressed: bool
    mentions_partial_execution: bool
    thinking: ThinkingLevel | None

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
    outcome = _image_outcome(progress, allowed, can_see=config.models[str(model)].vision)
    if outcome in (ImageOutcome.WITHHELD, ImageOutcome.STRIPPED):
        request = without_images(request)
    elif outcome is ImageOutcome.SENT:
        request = with_named_images(request)
    notice_text = _notice(progress, model)
    return AttemptPlan(
        with_notice(request, notice_text) if notice_text else request,
        outcome,
        allowed.suppress_prompt_image_detection,
        bool(notice_text),
        thinking,
    )


def _images_allowed(progress: ChainProgress, model: ModelRef) -> RetryImages:
    return images_for_attempt(
        is_retry=progress.is_retry,
        previous_reason=progress.previous_reason or progress.routing.earlier.previous_reason,
        provider=model.provider,
        first_provider=progress.first_provider,
    )


def _image_outcome(progress: ChainProgress, allowed: RetryImages, *, can_see: bool) -> ImageOutcome:
    routing = progress.routing
    if routing.has_images and not allowed.keep_images:
        return ImageOutcome.WITHHELD
    return image_outcome(has_images=routing.has_images, can_see=can_see, policy=routing.blind_model_policy)


def _notice(progress: ChainProgress, model: ModelRef) -> str | None:
    if not progress.is_retry:
        return None
    return notice(
        progress.routing.earlier.done,
        provider=model.provider,
        first_provider=progress.first_provider or model.provider,
        idempotent=progress.routing.idempotent_tools,
    )
