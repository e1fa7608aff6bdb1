"""A bounded number of names for the attributes of metrics."""

from collections import Counter

OTHER = "other"
"""The name of all further ones. One that really has this name is counted with them."""


class BoundedNames:
    """The names that have series of their own in this process: the first ones that come.

    Each counts for the tenant that came with it first, and a tenant has a bounded number of them:
    so none uses up the names of the others.
    """

    def __init__(self, max_count: int, max_count_of_tenant: int) -> None:
        self._max_count = max_count
        self._max_count_of_tenant = max_count_of_tenant
        self._names: set[str] = set()
        self._counts: Counter[str] = Counter()

    def bound(self, name: str, tenant_id: str) -> str:
        """Return the name, or OTHER if it comes after too many others."""
        if name in self._names:
            return name
        if len(self._names) >= self._max_count or self._counts[tenant_id] >= self._max_count_of_tenant:
            return OTHER
        self._names.add(name)
        self._counts[tenant_id] += 1
        return name
