"""The images of a request: on a retry, and at a model that cannot see."""

from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True)
class ImageMessage:
    """A message of the conversation, as far as the boundary of its images depends on it.

    `provider` gave the answer; it is empty for a message that is no answer. `image_provider` was
    given the images that were withheld from the answer's model; empty if none were.
    """

    is_user: bool = False
    has_images: bool = False
    provider: str = ""
    image_provider: str = ""


@dataclass(frozen=True, slots=True)
class ImageBoundary:
    """The provider that was given the images. They are withheld from every other one.

    `last_index` is the newest message whose images are withheld; None for all messages.
    """

    provider: str
    last_index: int | None = None

    def excludes(self, provider: str) -> bool:
        """Return whether the images are withheld from the provider."""
        return provider != self.provider


def image_boundary(messages: Iterable[ImageMessage]) -> ImageBoundary | None:
    """Return the boundary that the conversation so far sets; None if it sets none.

    A switch of the provider withholds the images until the provider that was given them answers
    again, or the user sends new ones. Within a turn, the provider of its first answer was given
    the images.
    """
    switched: ImageBoundary | None = None
    of_turn = ""
    for index, message in enumerate(messages):
        if message.is_user:
            of_turn = ""
            switched = None if message.has_images else switched
        elif message.image_provider:
            switched = ImageBoundary(message.image_provider, index)
        elif switched is not None and message.provider == switched.provider:
            switched = None
        of_turn = of_turn or message.image_provider or message.provider
    return switched or (ImageBoundary(of_turn) if of_turn else None)


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
