"""What a caller wants."""

from dataclasses import dataclass

from spawnmesh_model_router.domain.candidates import Candidate, Capability, ModelRef
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.partial import PartialExecution, not_replayable
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.providers.question import Question, Shown


@dataclass(frozen=True, slots=True)
class Earlier:
    """What happened to the turn before this call. `first_provider` is empty when it is not known where the turn began."""

    is_retry: bool = False
    first_provider: str = ""
    previous_reason: FailoverReason | None = None
    done: PartialExecution | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """`model` may be empty; with `only_named` nobody is asked who is not named. `deadline` is the caller's, on the monotonic clock, infinite
    without one. `named_images` are those that the prompt names and the question does not carry."""

    model: str
    fallback_models: tuple[str, ...]
    only_named: bool
    strict: bool
    question: Question
    named_images: tuple[Shown, ...]
    session_id: str
    deadline: float
    earlier: Earlier
    blind_model_policy: BlindModelPolicy
    policy: TenantPolicy

    @property
    def has_images(self) -> bool:
        """Whether there is anything to see."""
        return self.question.has_images or bool(self.named_images)

    @property
    def image_count(self) -> int:
        """How many a model sees that is sent them."""
        return self.question.image_count + len(self.named_images)

    @property
    def needs(self) -> frozenset[Capability]:
        """What a model must be able to do to be asked at all; by the other policies images are no such thing."""
        images = self.has_images and self.blind_model_policy is BlindModelPolicy.ROUTE_AROUND
        wanted = {Capability.IMAGES: images, Capability.TOOLS: bool(self.question.tools)}
        return frozenset(capability for capability, needed in wanted.items() if needed)

    @property
    def idempotent_tools(self) -> frozenset[str]:
        """The tools whose calls may be made again."""
        return frozenset(tool.name for tool in self.question.tools if tool.idempotent)

    @property
    def stays_with_provider(self) -> bool:
        """Whether the tenant wants no other provider now: something was done that may not be done twice."""
        done = self.earlier.done
        return (
            self.policy.stop_after_side_effects and done is not None and has_side_effects(done, self.idempotent_tools)
        )


def has_side_effects(done: PartialExecution, idempotent: frozenset[str]) -> bool:
    """Whether a repeat of what was done may do harm."""
    return done.sent_to_person or bool(not_replayable(done, idempotent))


@dataclass(frozen=True, slots=True)
class Link:
    """A candidate of a chain whose names all resolve."""

    candidate: Candidate
    model: ModelRef
