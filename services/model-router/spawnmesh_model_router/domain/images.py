"""The images of a request: on a retry, and at a model that cannot see."""

from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_model_router.domain.reasons import FailoverReason


@dataclass(frozen=True)
class RetryImages:
    """The images that an attempt may use: the user's, and those that the prompt names."""

    keep_images: bool
    suppress_prompt_image_detection: bool


def images_for_attempt(
    *,
    is_retry: bool,
    previous_reason: FailoverReason | None,
    provider: str | None,
    first_provider: str | None,
) -> RetryImages:
    """Decide whether an attempt keeps the images.

    A retry drops them if it goes to another provider than the first attempt, or after FORMAT. The
    user gave the images to the first provider only, and FORMAT may be about them. A provider that
    is None counts as the same one.
    """
    moved = provider is not None and first_provider is not None and provider != first_provider
    withheld = is_retry and (moved or previous_reason is FailoverReason.FORMAT)
    return RetryImages(keep_images=not withheld, suppress_prompt_image_detection=withheld)


class BlindModelPolicy(StrEnum):
    """The treatment of a request with images at a model that cannot see."""

    ROUTE_AROUND = "ROUTE_AROUND"
    STRIP = "STRIP"
    REFUSE = "REFUSE"


class ImageOutcome(StrEnum):
    """The treatment of the images, as the response reports it."""

    NO_IMAGES = "NO_IMAGES"
    SENT = "SENT"
    ROUTED_AROUND = "ROUTED_AROUND"
    STRIPPED = "STRIPPED"
    WITHHELD = "WITHHELD"
    REFUSED = "REFUSED"


def image_outcome(*, has_images: bool, can_see: bool, policy: BlindModelPolicy) -> ImageOutcome:
    """Decide what happens to the images of a request at one candidate."""
    if not has_images:
        return ImageOutcome.NO_IMAGES
    if can_see:
        return ImageOutcome.SENT
    return {
        BlindModelPolicy.ROUTE_AROUND: ImageOutcome.ROUTED_AROUND,
        BlindModelPolicy.STRIP: ImageOutcome.STRIPPED,
        BlindModelPolicy.REFUSE: ImageOutcome.REFUSED,
    }[policy]
