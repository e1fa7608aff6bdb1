"""The spending and the failed calls of a tenant that are to be stored."""

from dataclasses import dataclass, field

from spawnmesh_model_router.domain.failures import FailureCounts, FailureKey
from spawnmesh_model_router.domain.spend import Spend, SpendKey, SpendSums


@dataclass(slots=True)
class UsageSums:
    """The sums of a tenant by their keys. Its size is the number of sums."""

    spend: SpendSums = field(default_factory=SpendSums)
    failures: dict[FailureKey, FailureCounts] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.spend.sums) + len(self.failures)

    def add(self, other: "UsageSums", *, capacity: int) -> int:
        """Add all of the other's sums, with at most so many new ones.

        Return the number of calls that were left out.
        """
        left_out, bound = 0, len(self) + capacity
        for key, spend in other.spend.sums.items():
            if len(self) < bound or self.spend.fold(key) in self.spend.sums:
                self.spend.add(key, spend)
            else:
                left_out += spend.call_count
        for failed, counts in other.failures.items():
            if len(self) < bound or failed in self.failures:
                known = self.failures.get(failed)
                self.failures[failed] = counts if known is None else known + counts
            else:
                left_out += counts.failures
        return left_out


def one_spend(key: SpendKey, spend: Spend) -> UsageSums:
    """Return the sum of one charge."""
    sums = UsageSums()
    sums.spend.add(key, spend)
    return sums
