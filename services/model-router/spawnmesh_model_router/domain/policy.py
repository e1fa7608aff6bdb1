"""A tenant's policy for model calls, its limits, and the cost of a call."""

from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_model_router.domain.images import BlindModelPolicy


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; 0 means no limit.

    Spending is in millionths of the price table's currency. A day ends at midnight UTC.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    spend_micros_per_day: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.spend_micros_per_day)


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """A tenant's policy.

    The operator's default applies if blind_model_policy is None or max_tries is 0. With
    `trace_content`, spans have the messages of the calls, if the operator has them recorded too.
    Metrics have the `tenant_class`, one of a few names of the operator; it is empty without one.
    """

    blind_model_policy: BlindModelPolicy | None = None
    stop_after_side_effects: bool = False
    max_tries: int = 0
    limits: Limits = Limits()
    trace_content: bool = False
    tenant_class: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of the current minute and day, the request at hand included, and their seconds
    left.
    """

    request_count: int
    token_count: int
    spend_micros: int
    minute_left_seconds: float
    day_left_seconds: float


_MINUTE_SECONDS = 60.0
_DAY_SECONDS = 86_400.0
NOTHING_SPENT = Spent(0, 0, 0, _MINUTE_SECONDS, _DAY_SECONDS)
"""The usage of a tenant of which nothing is known."""


def spent_later(spent: Spent, seconds: float) -> Spent:
    """Return the usage after this time, if nothing was used meanwhile."""
    minute_left, day_left = spent.minute_left_seconds - seconds, spent.day_left_seconds - seconds
    is_same_minute, is_same_day = minute_left > 0, day_left > 0
    return Spent(
        spent.request_count if is_same_minute else 0,
        spent.token_count if is_same_minute else 0,
        spent.spend_micros if is_same_day else 0,
        minute_left if is_same_minute else minute_left % _MINUTE_SECONDS or _MINUTE_SECONDS,
        day_left if is_same_day else day_left % _DAY_SECONDS or _DAY_SECONDS,
    )


class BudgetKind(StrEnum):
    """A limit that a tenant can exceed."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    SPEND_PER_DAY = "spend_per_day"


@dataclass(frozen=True, slots=True)
class Exceeded:
    """An exhausted budget, and how long it stays so.

    With `by_calls_in_progress` it is not used up yet: calls in progress may use up the rest.
    """

    kind: BudgetKind
    retry_after_seconds: float
    by_calls_in_progress: bool = False


def exceeded(limits: Limits, spent: Spent) -> Exceeded | None:
    """Return the exhausted budget that refuses the request; of several, the one that lasts
    longest.
    """
    if limits.spend_micros_per_day and spent.spend_micros >= limits.spend_micros_per_day:
        return Exceeded(BudgetKind.SPEND_PER_DAY, spent.day_left_seconds)
    if limits.tokens_per_minute and spent.token_count >= limits.tokens_per_minute:
        return Exceeded(BudgetKind.TOKENS_PER_MINUTE, spent.minute_left_seconds)
    if limits.requests_per_minute and spent.request_count > limits.requests_per_minute:
        return Exceeded(BudgetKind.REQUESTS_PER_MINUTE, spent.minute_left_seconds)
    return None


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in millionths of the currency. `input` is for uncached tokens."""

    input: int
    output: int
    cache_read: int
    cache_write: int


def cost_micros(
    prices: Prices,
    input_tokens: int,
    output_tokens: int,
    cache_read_tokens: int = 0,
    cache_write_tokens: int = 0,
) -> int:
    """Return the cost of a call, rounded up. `input_tokens` includes the tokens of both caches."""
    uncached = max(input_tokens - cache_read_tokens - cache_write_tokens, 0)
    cost = (
        uncached * prices.input
        + output_tokens * prices.output
        + cache_read_tokens * prices.cache_read
        + cache_write_tokens * prices.cache_write
    )
    return -(-cost // 1_000_000)


IMAGE_TOKENS = 1_600
"""The estimate for an image: about what Anthropic counts for a large one.

OpenAI and Gemini count at most as much for most images.
"""


def estimated_tokens(byte_count: int) -> int:
    """Return the estimated tokens of a text: 4 bytes each.

    That is about right for a language in ASCII, and too many for others.
    """
    return -(-byte_count // 4)
