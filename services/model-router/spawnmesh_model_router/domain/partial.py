"""What earlier attempts of a turn already did, and how the next model is told."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason

MAX_TOOL_NAMES: Final = 20
MAX_TOOL_NAME_CHARS: Final = 100
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class PartialExecution:
    """Tools that ran, under the names that they were called by, and whether something was sent to a person."""

    tool_names: tuple[str, ...]
    sent_to_person: bool


@dataclass(frozen=True)
class FailedAttempt:
    """One attempt of this turn that failed, with what it had done by then."""

    reason: FailoverReason
    partial: PartialExecution | None


@dataclass(frozen=True)
class CarryOver:
    """What the next attempt knows of the earlier ones; both None on the first."""

    previous_reason: FailoverReason | None
    partial: PartialExecution | None


def sanitize_tool_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names that are safe to print in a prompt: letters, digits, `_` and `-` only, cut, without repeats, the first ones.

    The names come from a model: whatever else they carry could read as an instruction.
    """
    return tuple(_cleaned(names))[:MAX_TOOL_NAMES]


def _cleaned(names: Iterable[str]) -> dict[str, None]:
    cleaned = (_NOT_IN_A_NAME.sub("", name)[:MAX_TOOL_NAME_CHARS] for name in names)
    return dict.fromkeys(name for name in cleaned if name)


def merge(partials: Iterable[PartialExecution | None]) -> PartialExecution | None:
    """The union of what attempts did, in their order and all of it; None when nothing was done."""
    done = [partial for partial in partials if partial is not None]
    names = tuple(dict.fromkeys(name for partial in done for name in partial.tool_names if name))
    sent = any(partial.sent_to_person for partial in done)
    return PartialExecution(names, sent) if names or sent else None


def carry_over(failed: Iterable[FailedAttempt]) -> CarryOver:
    """What an attempt after `failed`, oldest first, has to know."""
    attempts = tuple(failed)
    return CarryOver(
        previous_reason=attempts[-1].reason if attempts else None,
        partial=merge(attempt.partial for attempt in attempts),
    )


def not_replayable(partial: PartialExecution, idempotent: frozenset[str]) -> tuple[str, ...]:
    """The tools that ran and may not be run again blindly: their outcome is unknown and a second run may do harm."""
    return tuple(name for name in partial.tool_names if name not in idempotent)


def told_names(partial: PartialExecution, idempotent: frozenset[str]) -> tuple[str, ...]:
    """The names that are told, safe to print and in the order of the calls. Where they are too many, those that may be run again are
    left out first."""
    told = frozenset(sanitize_tool_names([*not_replayable(partial, idempotent), *partial.tool_names]))
    return tuple(name for name in _cleaned(partial.tool_names) if name in told)


def notice(
    partial: PartialExecution | None, *, provider: str, first_provider: str, idempotent: frozenset[str] = frozenset()
) -> str | None:
    """The sentences for the next model; None when there is nothing to tell, or when it is at another provider than the
    one that the turn began with: what was done there is not that provider's to know."""
    merged = merge([partial])
    if merged is None or provider != first_provider:
        return None
    sentences = []
    if called := told_names(merged, idempotent):
        sentences.append(f"These tools were already called: {_listed(called, merged.tool_names)}.")
    unknown = not_replayable(merged, idempotent)
    if told := sanitize_tool_names(unknown):
        sentences.append(
            f"The outcome of these is unknown: {_listed(told, unknown)}. Find out what they did before you call them again."
        )
    if merged.sent_to_person:
        sentences.append("A message was already sent to a person. Do not send it a second time.")
    if not sentences:
        return None
    return " ".join(["An earlier attempt at this turn broke off after it had begun to act.", *sentences])


def _listed(told: Sequence[str], names: Iterable[str]) -> str:
    more = len(_cleaned(names)) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")
