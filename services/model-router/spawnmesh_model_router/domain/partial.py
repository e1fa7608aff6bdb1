"""Partial execution: the actions of earlier attempts of a turn, and the notice to the
next model.
"""

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
    """The names of the tools that ran, and whether something was sent to a person."""

    tool_names: tuple[str, ...]
    sent_to_person: bool


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt of this turn, and what it did."""

    reason: FailoverReason
    partial: PartialExecution | None


@dataclass(frozen=True)
class EarlierFailures:
    """A summary of the failed attempts. Both fields are None if there are none."""

    previous_reason: FailoverReason | None
    partial: PartialExecution | None


def sanitize_tool_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return at most 20 names that are safe in a prompt: letters, digits, `_` and `-`, 100
    characters each.

    The names come from a model. Other characters could form an instruction.
    """
    return tuple(_cleaned(names))[:MAX_TOOL_NAMES]


def _cleaned(names: Iterable[str]) -> dict[str, None]:
    cleaned = (_NOT_IN_A_NAME.sub("", name)[:MAX_TOOL_NAME_CHARS] for name in names)
    return dict.fromkeys(name for name in cleaned if name)


def merge(partials: Iterable[PartialExecution | None]) -> PartialExecution | None:
    """Return the union of what the attempts did, in their order; None if they did nothing."""
    done = [partial for partial in partials if partial is not None]
    names = tuple(dict.fromkeys(name for partial in done for name in partial.tool_names if name))
    sent = any(partial.sent_to_person for partial in done)
    return PartialExecution(names, sent) if names or sent else None


def summarize_failures(failed: Iterable[FailedAttempt]) -> EarlierFailures:
    """Summarize the failed attempts, which are ordered oldest first."""
    attempts = tuple(failed)
    return EarlierFailures(
        previous_reason=attempts[-1].reason if attempts else None,
        partial=merge(attempt.partial for attempt in attempts),
    )


def not_replayable(partial: PartialExecution, idempotent: frozenset[str]) -> tuple[str, ...]:
    """Return the tools that ran and must not run again blindly.

    Their outcome is unknown, and a second run may do harm.
    """
    return tuple(name for name in partial.tool_names if name not in idempotent)


def reported_names(partial: PartialExecution, idempotent: frozenset[str]) -> tuple[str, ...]:
    """Return the names for the notice, safe to print and in the order of the calls.

    If there are too many, names of idempotent tools are dropped first.
    """
    kept = frozenset(sanitize_tool_names([*not_replayable(partial, idempotent), *partial.tool_names]))
    return tuple(name for name in _cleaned(partial.tool_names) if name in kept)


def notice(
    partial: PartialExecution | None,
    *,
    provider: str,
    first_provider: str,
    idempotent: frozenset[str] = frozenset(),
) -> str | None:
    """Return the notice for the next model; None if there is nothing to report.

    Also returns None if the turn began at another provider: this one must not learn what was done
    there.
    """
    merged = merge([partial])
    if merged is None or provider != first_provider:
        return None
    sentences = []
    if called := reported_names(merged, idempotent):
        sentences.append(f"These tools were already called: {_listed(called, merged.tool_names)}.")
    unknown = not_replayable(merged, idempotent)
    if names := sanitize_tool_names(unknown):
        sentences.append(
            f"The outcome of these is unknown: {_listed(names, unknown)}. "
            "Find out what they did before you call them again."
        )
    if merged.sent_to_person:
        sentences.append("A message was already sent to a person. Do not send it a second time.")
    if not sentences:
        return None
    return " ".join(["An earlier attempt at this turn broke off after it had begun to act.", *sentences])


def _listed(shown: Sequence[str], names: Iterable[str]) -> str:
    more = len(_cleaned(names)) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
