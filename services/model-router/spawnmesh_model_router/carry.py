"""What one attempt carries of a request, and what it is told."""

from dataclasses import dataclass

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.config import RouterConfig
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.images import ImageOutcome, RetryImages, image_outcome, images_for_attempt
from spawnmesh_model_router.domain.partial import notice
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.progress import Progress
from spawnmesh_model_router.providers.question import Question, with_images, with_notice, without_images
from spawnmesh_model_router.providers.thinking import told

_NOTES = {
    ImageOutcome.WITHHELD: "images left out: they were given to another provider, or refused by it",
    ImageOutcome.STRIPPED: "images left out: the model cannot see",
}


@dataclass(frozen=True, slots=True)
class Carried:
    """A question as one attempt asks it. REFUSED in `images` means that it must not be asked."""

    question: Question
    images: ImageOutcome
    prompt_image_detection_suppressed: bool
    told_of_partial_execution: bool
    thinking: ThinkingLevel | None

    @property
    def note(self) -> str:
        """What is to be said about the images, for people."""
        return _NOTES.get(self.images, "")


def carry(ask: Ask, progress: Progress, model: ModelRef, config: RouterConfig) -> Carried:
    """The question for the next attempt at `model`."""
    thinking = thinking_of(ask.question, model, config)
    if not (ask.has_images or progress.attempts or ask.earlier.is_retry):
        return Carried(ask.question, ImageOutcome.NO_IMAGES, False, False, thinking)
    allowed = _images_allowed(ask, progress, model)
    outcome = _outcome(ask, allowed, can_see=config.models[str(model)].vision)
    question = ask.question
    if outcome in (ImageOutcome.WITHHELD, ImageOutcome.STRIPPED):
        question = without_images(question)
    elif outcome is ImageOutcome.SENT:
        question = with_images(question, ask.named_images)
    done = _notice(ask, progress, model)
    return Carried(
        with_notice(question, done) if done else question,
        outcome,
        allowed.suppress_prompt_image_detection,
        bool(done),
        thinking,
    )


def thinking_of(question: Question, model: ModelRef, config: RouterConfig) -> ThinkingLevel | None:
    """How much the model is told to think; None where it is told nothing."""
    if question.thinking is None:
        return None
    said = told(question, config.providers[model.provider].kind, config.models[str(model)])
    return said.level if said is not None else None


def _images_allowed(ask: Ask, progress: Progress, model: ModelRef) -> RetryImages:
    return images_for_attempt(
        is_retry=_is_retry(ask, progress),
        previous_reason=progress.previous_reason or ask.earlier.previous_reason,
        provider=model.provider,
        first_provider=_first_provider(ask, progress),
    )


def _outcome(ask: Ask, allowed: RetryImages, *, can_see: bool) -> ImageOutcome:
    if ask.has_images and not allowed.keep_images:
        return ImageOutcome.WITHHELD
    return image_outcome(has_images=ask.has_images, can_see=can_see, policy=ask.blind_model_policy)


def _notice(ask: Ask, progress: Progress, model: ModelRef) -> str | None:
    if not _is_retry(ask, progress):
        return None
    first = _first_provider(ask, progress) or model.provider
    return notice(ask.earlier.done, provider=model.provider, first_provider=first, idempotent=ask.idempotent_tools)


def _is_retry(ask: Ask, progress: Progress) -> bool:
    return ask.earlier.is_retry or bool(progress.attempts)


def _first_provider(ask: Ask, progress: Progress) -> str | None:
    return ask.earlier.first_provider or progress.first_provider
