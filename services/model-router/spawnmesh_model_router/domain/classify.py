"""Judges a failed model call: HTTP status first, text where it knows better, the error's name last."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from spawnmesh_model_router.domain.cooldown import scope_of
from spawnmesh_model_router.domain.echo import Echo, spelled_out
from spawnmesh_model_router.domain.evidence import MAX_TEXT_CHARS, Evidence, gather
from spawnmesh_model_router.domain.names import reason_of_name
from spawnmesh_model_router.domain.reasons import FailoverReason, ModelFailure
from spawnmesh_model_router.domain.signals import PERIOD, SIGNALS, TOO_LARGE_FOR_A_MINUTE, Signal, Topic


@dataclass(frozen=True)
class StatusRule:
    """What a status means, and the topics of text that are heard against it."""

    reason: FailoverReason
    heard: frozenset[Topic] = frozenset()


# Never heard in an answer: it came over a connection whose certificate was taken.
_ANSWERED: Final = frozenset(Topic) - {Topic.TLS}
# Heard against every status: the request itself or our own side is at fault, whatever the number.
_ALWAYS: Final = frozenset({Topic.LOCAL, Topic.IMAGE, Topic.REFUSAL, Topic.REFILL, Topic.CONTEXT})
_MALFORMED: Final = frozenset({Topic.TRANSCRIPT, Topic.REPLAY})
_MONEY: Final = frozenset({Topic.BILLING, Topic.CREDITS})
_ACCESS: Final = frozenset({Topic.LOGIN, Topic.TOKEN_REFRESH, Topic.AUTH_PERMANENT, Topic.AUTH})
# A refused request that speaks of a time-out names a parameter, not what happened.
_REFUSED: Final = _ANSWERED - {Topic.TIMEOUT, Topic.INTERNAL, Topic.SERVER, Topic.SILENCE}
_LOCKED_OUT: Final = StatusRule(FailoverReason.AUTH, frozenset({Topic.AUTH_PERMANENT, Topic.BILLING}))
_GAVE_UP: Final = StatusRule(FailoverReason.TIMEOUT)
_REJECTED: Final = StatusRule(FailoverReason.FORMAT, _REFUSED)
_FAULT: Final = StatusRule(FailoverReason.SERVER_ERROR, _MALFORMED | {Topic.OVERLOADED})

STATUS_RULES: Final[dict[int, StatusRule]] = {
    400: _REJECTED,
    401: _LOCKED_OUT,
    403: _LOCKED_OUT,
    404: StatusRule(
        FailoverReason.MODEL_NOT_FOUND, _MALFORMED | _MONEY | _ACCESS | {Topic.SESSION, Topic.MODEL, Topic.VENDOR}
    ),
    408: _GAVE_UP,
    410: StatusRule(FailoverReason.TIMEOUT, _MONEY | _ACCESS | {Topic.SESSION}),
    422: _REJECTED,
    429: StatusRule(FailoverReason.RATE_LIMIT, _MONEY),
    499: _GAVE_UP,
    504: _GAVE_UP,
    522: _GAVE_UP,
    524: _GAVE_UP,
    529: StatusRule(FailoverReason.OVERLOADED),
}

# An account that waits instead of pays: a limit that names when, or of what, it is lifted.
_WINDOW: Final = re.compile(
    rf"\b{PERIOD}\b.{{0,40}}\b(?:usage|spend|spending) limit|\b(?:usage|spend|spending) limit.{{0,40}}\b{PERIOD}\b"
    r"|\blimit\b.{0,120}\bresets?\b|\b(?:organization|workspace)\b.{0,40}\blimit\b.{0,20}\b(?:reached|exceeded|exhausted)\b"
    r"|\brate[ _]limit|\btoo many requests|\bthrottl|\b(?:quota|limit)s? (?:refresh|renew)|\brolling\b.{0,20}\bwindow\b"
    r"|\b(?:try again|retry)\b (?:after|in|at|later|tomorrow)\b|\bretry[- ]?(?:after|delay)\b",
    re.IGNORECASE | re.DOTALL,
)
_KNOWN_CHARS: Final = 2048  # Longer failures are not remembered: they are rare, and each would take its room.

_TOO_LARGE: Final = re.compile(r"\btoo (?:large|long|big)\b|\bexceed", re.IGNORECASE)
_LEADING_PAYMENT: Final = re.compile(
    r"^\s*(?:error:?\s+)?(?:http\s*)?(?:402)?[\s:]*payment required[\s:.\-]*", re.IGNORECASE
)


def classify(failure: ModelFailure, echo: Echo | None = None) -> FailoverReason:
    """The reason of `failure`. A text that nothing in the tables knows is NO_FAILOVER: it may well be the caller's own.

    With `echo` the failure is the answer to that request, and what it repeats of the request is not believed, but for a code or a type.
    """
    if echo is not None:
        return _judge(failure, echo)
    said = (failure.message, failure.code, failure.error_type, *failure.details, *failure.cause_messages)
    return _known(failure) if sum(map(len, said)) <= _KNOWN_CHARS else _judge(failure)


@lru_cache(maxsize=256)
def _known(failure: ModelFailure) -> FailoverReason:
    """While a limit lasts, a provider says the same to every call."""
    return _judge(failure)


def is_about_request(failure: ModelFailure, reason: FailoverReason) -> bool:
    """Whether a failure for that reason is of this request alone, although others of the same reason are not: it is larger than a minute's
    tokens, and is so at any time."""
    if reason is not FailoverReason.RATE_LIMIT:
        return False
    return TOO_LARGE_FOR_A_MINUTE.pattern.search(failure.message[:MAX_TEXT_CHARS].lower()) is not None


def reason_of_status(status: int | None) -> FailoverReason | None:
    """What the status means where the text is not heard; None without one."""
    if status == 402:
        return FailoverReason.BILLING
    return _rule_of(status).reason if status in STATUS_RULES or _is_transport(status) else None


def _judge(failure: ModelFailure, echo: Echo | None = None) -> FailoverReason:
    evidence = gather(failure)
    if echo is not None and evidence.status_wording and not echo.is_own(evidence.status_wording):
        evidence = replace(evidence, status=None)
    if evidence.is_html and _is_transport(evidence.status):
        return _rule_of(evidence.status).reason
    if evidence.status == 402:
        return _payment(evidence, echo)
    if evidence.status == 413:
        said = _by_text(evidence, _ANSWERED - {Topic.REFILL}, echo)
        too_large = any(map(_TOO_LARGE.search, evidence.texts))
        return said or (FailoverReason.CONTEXT_OVERFLOW if too_large else FailoverReason.NO_FAILOVER)
    if evidence.status in (400, 422) and not evidence.has_body:
        return FailoverReason.NO_FAILOVER
    if evidence.status in STATUS_RULES or _is_transport(evidence.status):
        rule = _rule_of(evidence.status)
        return _by_text(evidence, rule.heard | _ALWAYS, echo) or rule.reason
    names = evidence.names if echo is None else [name for name in evidence.names if _is_own_name(name, evidence, echo)]
    found = _by_text(evidence, frozenset(Topic) if echo is None else _ANSWERED, echo) or _by_name(names)
    if found is None and evidence.status is None and not evidence.texts:
        return FailoverReason.NO_ERROR_DETAILS
    return found or FailoverReason.NO_FAILOVER


def _is_transport(status: int | None) -> bool:
    return status is not None and (status in (408, 499) or 500 <= status <= 599)


def _rule_of(status: int | None) -> StatusRule:
    return STATUS_RULES.get(status or 0, _FAULT)


def _payment(evidence: Evidence, echo: Echo | None) -> FailoverReason:
    """402: money, unless the text shows a window that will open again. A workspace that was switched off is neither."""
    texts, meant = _without_payment(evidence.texts), _without_payment(evidence.meant)
    topics = frozenset({Topic.BILLING, Topic.AUTH_PERMANENT}) | _ALWAYS
    said = _by_text(replace(evidence, texts=texts, distinct=texts, meant=meant), topics, echo)
    if said is not None:
        return said
    if echo is None:
        opens_again = any(map(_WINDOW.search, texts))
    else:
        opens_again = any(echo.is_own(found[0]) for text in meant for found in _WINDOW.finditer(spelled_out(text)))
    return FailoverReason.RATE_LIMIT if opens_again else FailoverReason.BILLING


def _without_payment(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_LEADING_PAYMENT.sub("", text) for text in texts)


def _is_own_name(name: str, evidence: Evidence, echo: Echo) -> bool:
    """Whether the answer names an error so by itself, and no escape is a part of the name."""
    return name in evidence.given or (any(name in spelled_out(text) for text in evidence.meant) and echo.is_own(name))


def _by_text(evidence: Evidence, topics: frozenset[Topic], echo: Echo | None = None) -> FailoverReason | None:
    if echo is not None:
        return _match_own(evidence, topics, echo)
    return _match(evidence.texts, evidence.distinct, evidence.provider, topics)


def _match(
    texts: tuple[str, ...], distinct: tuple[str, ...], provider: str, topics: frozenset[Topic]
) -> FailoverReason | None:
    # A search that ignores case would try every phrase in full at every place.
    texts, distinct = _lower(texts), _lower(distinct)
    for signal in _signals(provider if provider in _SIGNALLED else "", topics):
        if any(map(signal.pattern.search, texts if signal.is_anchored else distinct)):
            return signal.reason
    return None


def _match_own(evidence: Evidence, topics: frozenset[Topic], echo: Echo) -> FailoverReason | None:
    """As `_match`, but for what only the request says."""
    given = _lower(tuple(evidence.given))
    others = _lower(tuple(spelled_out(text) for text in evidence.meant if text not in evidence.given))
    for signal in _signals(evidence.provider if evidence.provider in _SIGNALLED else "", topics):
        if any(map(signal.pattern.search, given)):
            return signal.reason
        matches = (found[0] for text in others for found in signal.pattern.finditer(text))
        # A match that changes nothing of what rests need not be looked up.
        if any(map(echo.is_own, matches) if scope_of(signal.reason) is not None else matches):
            return signal.reason
    return None


_SIGNALLED: Final = frozenset(signal.provider for signal in SIGNALS)


@cache
def _signals(provider: str, topics: frozenset[Topic]) -> tuple[Signal, ...]:
    """The rows that may speak. There are as many answers as rules and providers with rows of their own."""
    return tuple(signal for signal in SIGNALS if signal.topic in topics and signal.provider in ("", provider))


def _lower(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.lower() for text in texts)


def _by_name(names: Iterable[str]) -> FailoverReason | None:
    return next((reason for name in names if (reason := reason_of_name(name)) is not None), None)
