"""Tokens that a run uses, and their cost."""

from dataclasses import dataclass


@dataclass(slots=True)
class UsageTotal:
    """Tokens and cost of a run so far, summed over all runners that had it.

    `price_version` is that of the newest usage that has one.
    """

    input_token_count: int = 0
    output_token_count: int = 0
    cache_read_token_count: int = 0
    cache_write_token_count: int = 0
    cost_micros: int = 0
    price_version: str = ""

    def add(
        self,
        *,
        input_: int,
        output: int,
        cache_read: int,
        cache_write: int,
        cost_micros: int,
        price_version: str,
    ) -> None:
        """Add a usage that is newer than all before."""
        self.input_token_count += input_
        self.output_token_count += output
        self.cache_read_token_count += cache_read
        self.cache_write_token_count += cache_write
        self.cost_micros += cost_micros
        self.price_version = price_version or self.price_version
