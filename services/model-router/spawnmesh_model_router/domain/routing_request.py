"""The routing of a model call, apart from the content that goes to a provider."""

from dataclasses import dataclass

from spawnmesh_model_router.domain.candidates import Candidate, Capability, ModelRef
from spawnmesh_model_router.domain.images import BlindModelPolicy, ImageBoundary
from spawnmesh_model_router.domain.partial import PartialExecution, not_replayable
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.request_size import RequestSize


@dataclass(frozen=True, slots=True)
class EarlierAttempts:
    """The attempts of the turn before this call. `first_provider` is empty if it is unknown.

    The answers of the models in `broken` broke off: they are called after the others.
    """

    is_retry: bool = False
    first_provider: str = ""
    previous_reason: FailoverReason | None = None
    done: PartialExecution | None = None
    broken: frozenset[ModelRef] = frozenset()


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """The routing of one model call.

    `model` may be empty. With `only_named`, only models that the request names are candidates.
    `deadline` is the caller's, on the monotonic clock; infinite if there is none. The images
    counted here include those that the prompt names. `last_answer_provider` gave the newest answer
    of the conversation; empty if that is unknown. The call counts in the budgets that the run
    `budget_run_id` of the session shares; it is empty if the call counts in none. The epoch of that
    run is `run_epoch`, or 0 if a service calls for it. `agent_id` is the agent whose spending the
    call is; empty if no run calls.
    """

    tenant_id: str
    model: str
    fallback_models: tuple[str, ...]
    only_named: bool
    strict: bool
    session_id: str
    deadline: float
    earlier: EarlierAttempts
    blind_model_policy: BlindModelPolicy
    policy: TenantPolicy
    image_count: int
    image_boundary: ImageBoundary | None
    size: RequestSize
    has_tools: bool
    idempotent_tools: frozenset[str]
    last_answer_provider: str
    budget_run_id: str = ""
    run_epoch: int = 0
    agent_id: str = ""

    @property
    def has_images(self) -> bool:
        """Return whether the request has any image."""
        return self.image_count > 0

    @property
    def needs(self) -> frozenset[Capability]:
        """Return the capabilities that a candidate must have, whatever the size of the request.

        Only the policy ROUTE_AROUND makes images one of them.
        """
        images = self.has_images and self.blind_model_policy is BlindModelPolicy.ROUTE_AROUND
        wanted = {Capability.IMAGES: images, Capability.TOOLS: self.has_tools}
        return frozenset(capability for capability, needed in wanted.items() if needed)

    @property
    def stays_with_provider(self) -> bool:
        """Return whether no other provider may continue the turn.

        The tenant chose that for a turn that did something that must not be done twice.
        """
        done = self.earlier.done
        return (
            self.policy.stop_after_side_effects
            and done is not None
            and has_side_effects(done, self.idempotent_tools)
        )


def has_side_effects(done: PartialExecution, idempotent: frozenset[str]) -> bool:
    """Return whether repeating what was done may do harm."""
    return done.sent_to_person or bool(not_replayable(done, idempotent))


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A candidate of a chain, with the configured model that its name resolves to.

    `context_window` is in tokens. `fits` says whether the request is estimated to fit into it, and
    `is_capable` whether the model has the other capabilities that the request needs.
    """

    candidate: Candidate
    model: ModelRef
    context_window: int
    fits: bool
    is_capable: bool
