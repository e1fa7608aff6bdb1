"""The errors of a model call.

Their facts name each candidate and its outcome, in the chain's order.
"""

from spawnmesh_core.errors import TRANSIENT_FACT, Fact, MeshError, transient_fact
from spawnmesh_core.reasons import Reason

from spawnmesh_model_router.domain.answer import Answer, TextPiece, ToolCall
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.events import Attempt, Outcomes
from spawnmesh_model_router.domain.policy import Exceeded
from spawnmesh_model_router.domain.reasons import TRANSIENT_REASONS, FailoverReason

_MAX_NAMED_CANDIDATES = 4
"""A message names at most this many candidates. The facts name all."""


def unknown_model(name: str) -> MeshError:
    """Return the error for a name that resolves to no configured model. No provider was called."""
    return MeshError(
        Reason.UNKNOWN_MODEL,
        "no model of this name is configured; no provider was called",
        facts={"model": name},
    )


def unknown_tenant() -> MeshError:
    """Return the error for a tenant without a policy. No provider was called."""
    return MeshError(
        Reason.UNKNOWN_TENANT,
        "there is no such tenant, or it is being deleted; no provider was called",
    )


def budget_exceeded(over: Exceeded) -> MeshError:
    """Return the error for an exhausted budget. No provider was called."""
    state = "may be used up by the calls in progress" if over.by_calls_in_progress else "is used up"
    return MeshError(
        Reason.BUDGET_EXCEEDED,
        f"the tenant's budget of {over.kind.value.replace('_', ' ')} {state}; no provider was called",
        retry_after_seconds=max(over.retry_after_seconds, 0.001),
        facts={"budget": over.kind.value, "by_calls_in_progress": str(over.by_calls_in_progress).lower()},
    )


def budgets_unreachable() -> MeshError:
    """Return the error for a call that counts in budgets, in a process that knows no session
    service. No provider was called.
    """
    return MeshError(
        Reason.DEPENDENCY_UNAVAILABLE,
        "the call counts in the budgets of its session, and this service has no session service: an"
        " operator sets MODEL_ROUTER_SESSION_TARGET; no provider was called",
        facts={"dependency": "session"},
    )


def all_candidates_failed(outcomes: Outcomes, retry_after_seconds: float) -> MeshError:
    """Return the error for a chain without an answer.

    The first candidate is available again after `retry_after_seconds`. The fact `is_transient` says
    whether any candidate may answer the same request later.
    """
    return MeshError(
        Reason.ALL_CANDIDATES_FAILED,
        f"none of {len(outcomes)} candidates answered ({_listed(outcomes)});"
        " call again later or name other models",
        retry_after_seconds=retry_after_seconds,
        facts={TRANSIENT_FACT: transient_fact(_may_answer_later(outcomes)), **_facts(outcomes)},
    )


def model_refused(model: ModelRef, reason: FailoverReason, detail: str, outcomes: Outcomes) -> MeshError:
    """Return the error for a request that every candidate would refuse."""
    return MeshError(
        Reason.MODEL_REFUSED,
        f"{model} refused the request, and so would others: {detail}",
        facts={"model": str(model), "failover_reason": reason.value, **_facts(outcomes)},
    )


def request_too_large(outcomes: Outcomes) -> MeshError:
    """Return the error for a request that fits into the context window of no candidate."""
    return MeshError(
        Reason.MODEL_REFUSED,
        f"the request fits into the context window of no candidate ({_listed(outcomes)})",
        facts={"failover_reason": FailoverReason.CONTEXT_OVERFLOW.value, **_facts(outcomes)},
    )


def stream_broken(
    model: ModelRef, reason: FailoverReason, answer: Answer, first: Attempt, outcomes: Outcomes
) -> MeshError:
    """Return the error for an answer that broke off after its first output.

    The facts say how much was sent, so that the caller can find and discard it. They name the
    `first` attempt of the call: its provider was given the images. The fact `is_transient` says
    whether this model or another candidate may answer the same request later.
    """
    may_answer_later = reason in TRANSIENT_REASONS or _may_answer_later(outcomes)
    text = "".join(block.text for block in answer.blocks if isinstance(block, TextPiece))
    return MeshError(
        Reason.STREAM_BROKEN,
        f"{model} failed during its answer; discard the incomplete output and call again from the start",
        facts={
            TRANSIENT_FACT: transient_fact(may_answer_later),
            "model": str(model),
            "failover_reason": reason.value,
            "first_model": str(first.model),
            "first_failover_reason": (first.reason or reason).value,
            "sent_text_bytes": len(text.encode("utf-8", "replace")),
            "sent_tool_call_count": sum(isinstance(block, ToolCall) for block in answer.blocks),
            **_facts(outcomes),
        },
    )


def _listed(outcomes: Outcomes) -> str:
    named = [f"{model} {outcome}" for model, outcome in outcomes[:_MAX_NAMED_CANDIDATES]]
    more = len(outcomes) - len(named)
    return "; ".join([*named, f"and {more} more"] if more else named)


def _may_answer_later(outcomes: Outcomes) -> bool:
    """Return whether any candidate may answer the request later.

    A candidate in cooldown may: its provider was not called with this request, and the cooldown of
    a refused key or certificate also ends.
    """
    return any(outcome.reason in TRANSIENT_REASONS or outcome.kind == "COOLING" for _, outcome in outcomes)


def _facts(outcomes: Outcomes) -> dict[str, Fact]:
    return {
        f"candidate_{number}": f"{model} {outcome}" for number, (model, outcome) in enumerate(outcomes, 1)
    }
