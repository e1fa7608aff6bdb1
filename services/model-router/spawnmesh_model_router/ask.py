"""What a caller wants."""

from dataclasses import dataclass

from spawnmesh_model_router.domain.candidates import Candidate, Capability, ModelRef
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.providers.question import Question


@dataclass(frozen=True, slots=True)
class Ask:
    """`model` may be empty. `deadline` is the caller's, on the monotonic clock, infinite without one."""

    model: str
    fallback_models: tuple[str, ...]
    strict: bool
    question: Question
    session_id: str
    deadline: float

    def needs(self, policy: BlindModelPolicy) -> frozenset[Capability]:
        """What a model must be able to do to be asked at all; by the other policies images are no such thing."""
        images = self.question.has_images and policy is BlindModelPolicy.ROUTE_AROUND
        wanted = {Capability.IMAGES: images, Capability.TOOLS: bool(self.question.tools)}
        return frozenset(capability for capability, needed in wanted.items() if needed)


@dataclass(frozen=True, slots=True)
class Link:
    """A candidate of a chain whose names all resolve."""

    candidate: Candidate
    model: ModelRef
