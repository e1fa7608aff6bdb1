"""How a model call is refused. Facts name each candidate with its outcome, in the chain's order."""

from spawnmesh_core.errors import Fact, MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.policy import Exceeded
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.events import Outcomes
from spawnmesh_model_router.providers.answer import Answer, Call, TextPiece


def unknown_model(name: str) -> MeshError:
    """Nobody was called."""
    return MeshError(
        Reason.UNKNOWN_MODEL, "no model of this name is configured; nobody was called", facts={"model": name}
    )


def budget_exceeded(over: Exceeded) -> MeshError:
    """Nobody was called."""
    return MeshError(
        Reason.BUDGET_EXCEEDED,
        f"the tenant's budget of {over.kind.value.replace('_', ' ')} is used up; nobody was called",
        retry_after_seconds=max(over.retry_after_seconds, 0.001),
        facts={"budget": over.kind.value},
    )


def all_candidates_failed(outcomes: Outcomes, retry_after_seconds: float) -> MeshError:
    """`retry_after_seconds` is until the first of them may be asked again."""
    return MeshError(
        Reason.ALL_CANDIDATES_FAILED,
        f"none of {len(outcomes)} candidates answered; call again later or name other models",
        retry_after_seconds=retry_after_seconds,
        facts=_facts(outcomes),
    )


def model_refused(model: ModelRef, reason: FailoverReason, detail: str, outcomes: Outcomes) -> MeshError:
    """The request itself is at fault: another candidate would do no better."""
    return MeshError(
        Reason.MODEL_REFUSED,
        f"{model} refused the request, and so would others: {detail}",
        facts={"model": str(model), "failover_reason": reason.value, **_facts(outcomes)},
    )


def stream_broken(model: ModelRef, reason: FailoverReason, answer: Answer, outcomes: Outcomes) -> MeshError:
    """Tells what the caller has got by then, so that it can be recognised and thrown away."""
    text = "".join(block.text for block in answer.blocks if isinstance(block, TextPiece))
    return MeshError(
        Reason.STREAM_BROKEN,
        f"{model} failed within its answer; what was sent is not whole, ask again from the start",
        facts={
            "model": str(model),
            "failover_reason": reason.value,
            "sent_text_bytes": len(text.encode("utf-8", "replace")),
            "sent_tool_call_count": sum(isinstance(block, Call) for block in answer.blocks),
            **_facts(outcomes),
        },
    )


def _facts(outcomes: Outcomes) -> dict[str, Fact]:
    return {f"candidate_{number}": f"{model} {outcome}" for number, (model, outcome) in enumerate(outcomes, 1)}
