"""Model calls of a run that failed."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_EVENTS = 1000
"""The most failures of a run that are events."""


@dataclass(frozen=True, slots=True)
class FailedModelCall:
    """A model that was called and gave no answer. `http_status` is 0 if there was none."""

    model: str
    reason: str
    http_status: int = 0

    @property
    def detail(self) -> str:
        """The failure in one line."""
        status = f" (HTTP {self.http_status})" if self.http_status else ""
        return f"{self.model}: {self.reason}{status}"


def unknown_failures(
    failures: Sequence[FailedModelCall], first_number: int, known_count: int
) -> tuple[Sequence[FailedModelCall], int]:
    """Return the failures that become events, and the number of failures that are known then.

    The failures are numbered from `first_number` on. Those up to `known_count` are known.
    """
    count = max(known_count, first_number + len(failures) - 1)
    fresh = failures[max(0, known_count + 1 - first_number) :]
    return fresh[: max(0, MAX_EVENTS - known_count)], count
