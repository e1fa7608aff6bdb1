"""What a tenant chose for its model calls, and whether its budget is spent."""

from dataclasses import dataclass
from enum import StrEnum

from spawnmesh_model_router.domain.images import BlindModelPolicy


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may use up; 0 means no limit. Spending is in millionths of the price table's currency, a day ends by UTC."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    spend_micros_per_day: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.spend_micros_per_day)


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """A tenant's choices; `blind_model_policy` None and `max_tries` 0 leave them to the operator."""

    blind_model_policy: BlindModelPolicy | None = None
    stop_after_side_effects: bool = False
    max_tries: int = 0
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Spent:
    """What is used up of the minute and the day that are running, the request at hand included, and the seconds until each is over."""

    request_count: int
    token_count: int
    spend_micros: int
    minute_left_seconds: float
    day_left_seconds: float


class BudgetKind(StrEnum):
    """What a tenant can run out of."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    SPEND_PER_DAY = "spend_per_day"


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A budget that is used up, for so long."""

    kind: BudgetKind
    retry_after_seconds: float


def exceeded(limits: Limits, spent: Spent) -> Exceeded | None:
    """The budget that lets the request at hand not in; the one that lasts longest where there are several."""
    if limits.spend_micros_per_day and spent.spend_micros >= limits.spend_micros_per_day:
        return Exceeded(BudgetKind.SPEND_PER_DAY, spent.day_left_seconds)
    if limits.tokens_per_minute and spent.token_count >= limits.tokens_per_minute:
        return Exceeded(BudgetKind.TOKENS_PER_MINUTE, spent.minute_left_seconds)
    if limits.requests_per_minute and spent.request_count > limits.requests_per_minute:
        return Exceeded(BudgetKind.REQUESTS_PER_MINUTE, spent.minute_left_seconds)
    return None


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens of each sort cost, in millionths of the currency. `input` is for those that no cache has to do with."""

    input: int
    output: int
    cache_read: int
    cache_write: int


def cost_micros(
    prices: Prices, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0, cache_write_tokens: int = 0
) -> int:
    """What a call costs, rounded up; `input_tokens` includes those of both caches."""
    uncached = max(input_tokens - cache_read_tokens - cache_write_tokens, 0)
    cost = (
        uncached * prices.input
        + output_tokens * prices.output
        + cache_read_tokens * prices.cache_read
        + cache_write_tokens * prices.cache_write
    )
    return -(-cost // 1_000_000)


IMAGE_TOKENS = 1_600
"""Of an image, where nobody counted it: about what Anthropic counts for a large one, and as much as OpenAI and Gemini count for most."""


def estimated_tokens(byte_count: int) -> int:
    """Tokens of so much text, where nobody counted them: about what a language that is written in ASCII comes to, and more for others."""
    return -(-byte_count // 4)
