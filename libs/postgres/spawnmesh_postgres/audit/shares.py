"""The shares of parties in a buffer: their events by number, and the party that has the most."""

from collections import defaultdict, deque

Party = tuple[str, str]
"""A kind of callers, and their tenant if they have one."""


class Shares:
    """The numbers of the events of each party, in the order in which they were added.

    All methods take constant time: a flood must not make the event loop search.
    """

    def __init__(self) -> None:
        self._numbers: dict[Party, deque[int]] = {}
        self._by_count: defaultdict[int, dict[Party, None]] = defaultdict(dict)
        self._most = 0

    def is_largest(self, party: Party) -> bool:
        """Return whether no other party has more events."""
        return self._count(party) == self._most

    def add(self, party: Party, number: int) -> None:
        """Add an event that is newer than all others."""
        before = self._count(party)
        self._numbers.setdefault(party, deque()).append(number)
        self._move(party, before)

    def drop_oldest(self, party: Party) -> None:
        """Remove the oldest event of the party."""
        before = self._count(party)
        self._numbers[party].popleft()
        self._move(party, before)

    def drop_newest_of_largest(self) -> int:
        """Remove the newest event of a party with the most events, and return its number."""
        party = next(iter(self._by_count[self._most]))
        before = self._count(party)
        number = self._numbers[party].pop()
        self._move(party, before)
        return number

    def _count(self, party: Party) -> int:
        return len(self._numbers.get(party, ()))

    def _move(self, party: Party, before: int) -> None:
        """Note that the number of events of the party has changed by one."""
        after = self._count(party)
        if before:
            del self._by_count[before][party]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count[after][party] = None
        else:
            del self._numbers[party]
        if after > self._most or (before == self._most and before not in self._by_count):
            self._most = after
