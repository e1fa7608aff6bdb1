"""Classify a failed model call: by its HTTP status, then its text, then the name of the error."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from spawnmesh_model_router.domain.cooldown import scope_of
from spawnmesh_model_router.domain.error_names import reason_of_name
from spawnmesh_model_router.domain.evidence import (
    MAX_TEXT_CHARS,
    Evidence,
    extract_evidence,
    without_wrappers,
)
from spawnmesh_model_router.domain.prompt_echo import PromptEchoFilter, unescape
from spawnmesh_model_router.domain.reasons import FailoverReason, ModelFailure
from spawnmesh_model_router.domain.signal_terms import PERIOD
from spawnmesh_model_router.domain.signals import SIGNALS, TOO_LARGE_FOR_A_MINUTE, Signal, Topic


@dataclass(frozen=True)
class StatusRule:
    """The reason of a status, and the topics of text that override it.

    Some topics override every status, apart from those in `ignored`. If no text does, a code or
    type of the error overrides it with one of the reasons in `named`.
    """

    reason: FailoverReason
    overriding: frozenset[Topic] = frozenset()
    ignored: frozenset[Topic] = frozenset()
    named: frozenset[FailoverReason] = frozenset()


# Weak words for a cause: they count only against a status that says another one.
_HINTS: Final = frozenset({Topic.CRASH, Topic.GAVE_UP, Topic.LIMITED, Topic.BUSY})
# Words for a form: a code or type that names a cause says more.
_WEAK: Final = frozenset({Topic.INVALID, Topic.VENDOR_CODE, Topic.REPLACED})
# A response came over a connection with a trusted certificate, and from another machine than ours:
# its text is about neither of the two.
_ANSWERED: Final = frozenset(Topic) - {Topic.TLS, Topic.LOCAL}
# These topics override every status: the request itself is at fault.
_ALWAYS: Final = frozenset({Topic.IMAGE, Topic.REFUSAL, Topic.REFILL, Topic.CONTEXT})
_MALFORMED: Final = frozenset({Topic.TRANSCRIPT, Topic.REPLAY})
_MONEY: Final = frozenset({Topic.BILLING, Topic.CREDITS})
_ACCESS: Final = frozenset({Topic.BANNED, Topic.LOGIN, Topic.TOKEN_REFRESH, Topic.AUTH_PERMANENT, Topic.AUTH})
# A refused request whose text mentions a timeout names a parameter, not an event.
_REFUSED: Final = _ANSWERED - {
    Topic.TIMEOUT,
    Topic.INTERNAL,
    Topic.SERVER,
    Topic.SILENCE,
    Topic.FAULT,
    Topic.INVALID,
    Topic.REPLACED,
}
_LOCKED_OUT: Final = StatusRule(
    FailoverReason.AUTH,
    frozenset(
        {Topic.BANNED, Topic.GONE, Topic.NO_SUCH, Topic.SESSION, Topic.AUTH_PERMANENT, Topic.BILLING}
        | {Topic.REFILL, Topic.PERIODIC, Topic.THROTTLED, Topic.LIMITED, Topic.PLAN, Topic.TRANSCRIPT}
    ),
)
_GAVE_UP: Final = StatusRule(FailoverReason.TIMEOUT)
# The reasons that the name of an error gives to a refused request.
_NAMED: Final = frozenset(
    {
        FailoverReason.RATE_LIMIT,
        FailoverReason.OVERLOADED,
        FailoverReason.BILLING,
        FailoverReason.AUTH,
        FailoverReason.AUTH_PERMANENT,
        FailoverReason.CONTEXT_OVERFLOW,
        FailoverReason.MODEL_NOT_FOUND,
        FailoverReason.NO_FAILOVER,
    }
)
_REJECTED: Final = StatusRule(FailoverReason.FORMAT, _REFUSED, named=_NAMED)
# A proxy often answers 5xx for each failure of the provider behind it. Its text has the cause, and
# only a general text, such as "bad gateway", says no more than the status.
_FAULT: Final = StatusRule(
    FailoverReason.SERVER_ERROR,
    _REFUSED - {Topic.NOT_FOUND, Topic.THROTTLED, Topic.RATE, Topic.CRASH, Topic.GAVE_UP},
)
# The credential that a gateway reports to be refused is its own.
_GATEWAY: Final = StatusRule(FailoverReason.SERVER_ERROR, _FAULT.overriding - _ACCESS)

STATUS_RULES: Final[dict[int, StatusRule]] = {
    400: _REJECTED,
    401: _LOCKED_OUT,
    403: _LOCKED_OUT,
    404: StatusRule(
        FailoverReason.MODEL_NOT_FOUND,
        _MALFORMED
        | _MONEY
        | _ACCESS
        | {Topic.SESSION, Topic.GONE, Topic.NO_SUCH, Topic.MODEL, Topic.VENDOR, Topic.NOT_FOUND},
    ),
    408: _GAVE_UP,
    410: StatusRule(FailoverReason.TIMEOUT, _MALFORMED | _MONEY | _ACCESS | {Topic.SESSION, Topic.GONE}),
    405: StatusRule(FailoverReason.UNCLASSIFIED, _REFUSED, named=_NAMED),
    # Accepted types, length, address, type of the content, header fields.
    **dict.fromkeys((406, 411, 414, 415, 431), _REJECTED),
    422: StatusRule(FailoverReason.FORMAT, _REFUSED | {Topic.SILENCE}, named=_NAMED),
    # The text is about another server, such as one with tools.
    424: StatusRule(FailoverReason.UNCLASSIFIED),
    # A request that is too large for the tokens of a minute says so in the words of a context.
    429: StatusRule(FailoverReason.RATE_LIMIT, _MONEY, ignored=frozenset({Topic.CONTEXT})),
    499: _GAVE_UP,
    502: _GATEWAY,
    504: _GAVE_UP,
    522: _GAVE_UP,
    524: _GAVE_UP,
    529: StatusRule(FailoverReason.OVERLOADED),
}

# A limit that ends by itself: the text names its period or when it resets.
_WINDOW: Final = re.compile(
    rf"\b{PERIOD}\b.{{0,40}}\b(?:usage|spend|spending) limit"
    rf"|\b(?:usage|spend|spending) limit.{{0,40}}\b{PERIOD}\b"
    r"|\blimit\b.{0,120}\bresets?\b"
    r"|\b(?:organization|workspace)\b.{0,40}\blimit\b.{0,20}\b(?:reached|exceeded|exhausted)\b"
    r"|\brate[ _]limit|\btoo many requests|\bthrottl|\b(?:quota|limit)s? (?:refresh|renew)"
    r"|\brolling\b.{0,20}\bwindow\b"
    r"|\b(?:try again|retry)\b (?:after|in|at|later|tomorrow)\b|\bretry[- ]?(?:after|delay)\b",
    re.IGNORECASE | re.DOTALL,
)
_MAX_CACHED_CHARS: Final = 2048  # Longer failures are rare and would fill the cache.

_TOO_LARGE: Final = re.compile(r"\btoo (?:large|long|big)\b|\bexceed", re.IGNORECASE)
_LEADING_PAYMENT: Final = re.compile(
    r"^\s*(?:error:?\s+)?(?:http\s*)?(?:402)?[\s:]*payment required[\s:.\-]*", re.IGNORECASE
)


def classify(failure: ModelFailure, echo_filter: PromptEchoFilter | None = None) -> FailoverReason:
    """Return the reason of the failure.

    A failure that no rule matches is UNCLASSIFIED: NO_FAILOVER needs evidence that another model
    would refuse as well. With `echo_filter`, text that repeats the request is no evidence, apart
    from the response's own code and type.
    """
    if echo_filter is not None:
        return _judge(failure, echo_filter)
    texts = (failure.message, failure.code, failure.error_type, *failure.details, *failure.cause_messages)
    return _judge_cached(failure) if sum(map(len, texts)) <= _MAX_CACHED_CHARS else _judge(failure)


@lru_cache(maxsize=256)
def _judge_cached(failure: ModelFailure) -> FailoverReason:
    """Cache the reason: during a limit, a provider sends the same error to every call."""
    return _judge(failure)


def is_about_request(failure: ModelFailure, reason: FailoverReason) -> bool:
    """Return whether the failure concerns only this request: it exceeds the tokens of a minute.

    Other failures of the same reason concern every request.
    """
    if reason is not FailoverReason.RATE_LIMIT:
        return False
    return TOO_LARGE_FOR_A_MINUTE.pattern.search(failure.message[:MAX_TEXT_CHARS].lower()) is not None


def reason_of_status(status: int | None) -> FailoverReason | None:
    """Return the reason of the status without regard to the text; None without a status rule."""
    if status == 402:
        return FailoverReason.BILLING
    return _rule_of(status).reason if status in STATUS_RULES or _is_transport(status) else None


def _judge(failure: ModelFailure, echo_filter: PromptEchoFilter | None = None) -> FailoverReason:
    evidence = extract_evidence(failure)
    if (
        echo_filter is not None
        and evidence.status_wording
        and not echo_filter.is_own(evidence.status_wording)
    ):
        evidence = replace(evidence, status=None)
    names = (
        evidence.names
        if echo_filter is None
        else [name for name in evidence.names if _is_own_name(name, evidence, echo_filter)]
    )
    if evidence.is_html and _is_transport(evidence.status):
        return _rule_of(evidence.status).reason
    if evidence.status == 402:
        return _payment(evidence, echo_filter)
    if evidence.status == 413:
        by_text = _by_text(evidence, _ANSWERED, echo_filter)
        too_large = any(map(_TOO_LARGE.search, evidence.texts))
        # Without a text it may be the limit of a proxy, which another provider does not have.
        return by_text or (FailoverReason.CONTEXT_OVERFLOW if too_large else FailoverReason.FORMAT)
    if evidence.status == 400 and not evidence.has_body:
        return FailoverReason.NO_FAILOVER
    if evidence.status in STATUS_RULES or _is_transport(evidence.status):
        rule = _rule_of(evidence.status)
        by_text = _by_text(evidence, (rule.overriding | _ALWAYS) - rule.ignored, echo_filter)
        if by_text is None and (by_name := _by_name(names)) in rule.named:
            return by_name or rule.reason
        return by_text or rule.reason
    topics = frozenset(Topic) if echo_filter is None and evidence.status is None else _ANSWERED
    found = _by_text(evidence, topics - _HINTS - _WEAK, echo_filter)
    if found is None and (by_name := _by_name(names)) in _NAMED:
        return by_name or FailoverReason.UNCLASSIFIED
    found = found or _by_text(evidence, _WEAK, echo_filter) or _by_name(names)
    if found is None and evidence.status is None and not evidence.texts:
        return FailoverReason.NO_ERROR_DETAILS
    return found or FailoverReason.UNCLASSIFIED


def _is_transport(status: int | None) -> bool:
    """A redirect is one, since none is followed."""
    return status is not None and (status in (408, 499) or 300 <= status <= 399 or 500 <= status <= 599)


def _rule_of(status: int | None) -> StatusRule:
    return STATUS_RULES.get(status or 0, _FAULT)


def _payment(evidence: Evidence, echo_filter: PromptEchoFilter | None) -> FailoverReason:
    """Return the reason of status 402: BILLING, or RATE_LIMIT if the text names a limit that
    resets.

    A deactivated workspace is neither.
    """
    texts, meant = _without_payment(evidence.texts), _without_payment(evidence.meant)
    topics = frozenset({Topic.BANNED, Topic.BILLING, Topic.AUTH_PERMANENT}) | _ALWAYS
    by_text = _by_text(replace(evidence, texts=texts, distinct=texts, meant=meant), topics, echo_filter)
    if by_text is not None:
        return by_text
    if echo_filter is None:
        resets = any(map(_WINDOW.search, texts))
    else:
        resets = any(
            echo_filter.is_own(found[0]) for text in meant for found in _WINDOW.finditer(unescape(text))
        )
    return FailoverReason.RATE_LIMIT if resets else FailoverReason.BILLING


def _without_payment(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_LEADING_PAYMENT.sub("", text) for text in texts)


def _is_own_name(name: str, evidence: Evidence, echo_filter: PromptEchoFilter) -> bool:
    """Return whether the response itself uses the name, and no escape is part of it."""
    return name in evidence.given or (
        any(name in unescape(text) for text in evidence.meant) and echo_filter.is_own(name)
    )


def _by_text(
    evidence: Evidence, topics: frozenset[Topic], echo_filter: PromptEchoFilter | None = None
) -> FailoverReason | None:
    if echo_filter is not None:
        return _match_own(evidence, topics, echo_filter)
    return _match(evidence.texts, evidence.distinct, evidence.provider, topics)


def _match(
    texts: tuple[str, ...], distinct: tuple[str, ...], provider: str, topics: frozenset[Topic]
) -> FailoverReason | None:
    # A case-insensitive search would try every phrase in full at every position.
    texts, distinct = _lower(texts), _lower(distinct)
    for signal in _signals(provider if provider in _PROVIDERS_WITH_SIGNALS else "", topics):
        if any(map(signal.pattern.search, texts if signal.is_anchored else distinct)):
            return signal.reason
    return None


def _match_own(
    evidence: Evidence, topics: frozenset[Topic], echo_filter: PromptEchoFilter
) -> FailoverReason | None:
    """Match as `_match` does, but ignore text that repeats the request."""
    given = _lower(tuple(evidence.given))
    others = _lower(
        tuple(without_wrappers(unescape(text)) for text in evidence.meant if text not in evidence.given)
    )
    for signal in _signals(evidence.provider if evidence.provider in _PROVIDERS_WITH_SIGNALS else "", topics):
        if any(map(signal.pattern.search, given)):
            return signal.reason
        matches = (found[0] for text in others for found in signal.pattern.finditer(text))
        # A reason without a cooldown affects only this call, so its match needs no check.
        if any(map(echo_filter.is_own, matches) if scope_of(signal.reason) is not None else matches):
            return signal.reason
    return None


_PROVIDERS_WITH_SIGNALS: Final = frozenset(signal.provider for signal in SIGNALS)


@cache
def _signals(provider: str, topics: frozenset[Topic]) -> tuple[Signal, ...]:
    """Return the signals for the provider and the topics.

    The cache is small: one entry for each status rule and provider with signals of its own.
    """
    return tuple(signal for signal in SIGNALS if signal.topic in topics and signal.provider in ("", provider))


def _lower(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.lower() for text in texts)


def _by_name(names: Iterable[str]) -> FailoverReason | None:
    return next((reason for name in names if (reason := reason_of_name(name)) is not None), None)
