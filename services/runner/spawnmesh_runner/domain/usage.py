"""Tokens that a run uses."""

from dataclasses import dataclass


@dataclass(slots=True)
class UsageTotal:
    """Tokens that a run used so far, summed over all runners that had it."""

    input_token_count: int = 0
    output_token_count: int = 0
    cache_read_token_count: int = 0
    cache_write_token_count: int = 0

    def add(self, *, input_: int, output: int, cache_read: int, cache_write: int) -> None:
        self.input_token_count += input_
        self.output_token_count += output
        self.cache_read_token_count += cache_read
        self.cache_write_token_count += cache_write
