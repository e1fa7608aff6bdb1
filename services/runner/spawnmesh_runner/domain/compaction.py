"""When a run compacts its transcript, and how much of it stays uncompacted."""

from dataclasses import dataclass

DEFAULT_CONTEXT_TOKEN_BUDGET = 100_000
_MAX_FAILED_COUNT = 2
_FRESH_TOKENS, _FRESH_SHARE = 24_000, 4


@dataclass(slots=True)
class CompactionAttempts:
    """Failed compactions of this run. After a few failures the run waits for no more of them."""

    failed_count: int = 0

    @property
    def may_try(self) -> bool:
        return self.failed_count < _MAX_FAILED_COUNT


def fresh_tail_token_count(token_budget: int) -> int:
    """Return how many tokens at the end of a context are never summarized.

    With a small budget it is a quarter of the budget: otherwise nothing could ever be summarized.
    """
    return min(_FRESH_TOKENS, max(1, token_budget // _FRESH_SHARE))
