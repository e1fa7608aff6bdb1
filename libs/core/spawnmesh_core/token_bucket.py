"""A token bucket: the rule of a rate limit."""


class TokenBucket:
    """Admits `per_second` units a second, and those of `burst_seconds` at once after a pause.

    A unit is a call, a byte or another thing. The bucket starts full. Times are seconds of one
    clock; a time before the latest one counts as the latest one.

    In any span of t seconds the bucket admits at most `per_second * (burst_seconds + t)` units with
    `take`.
    """

    __slots__ = ("_level", "_max_level", "_time", "per_second")

    def __init__(self, per_second: float, now: float, burst_seconds: float = 1.0) -> None:
        self.per_second = per_second
        self._max_level = self._level = per_second * burst_seconds
        self._time = now

    def take(self, now: float) -> float:
        """Take one unit if there is one, and return 0; otherwise the seconds until there is one."""
        self._fill(now)
        if self._level >= 1:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self.per_second

    def seconds_of_debt(self, now: float) -> float:
        """Return the seconds until the bucket owes nothing; 0 if it owes nothing now."""
        self._fill(now)
        return max(0.0, -self._level / self.per_second)

    def spend(self, units: float, now: float) -> None:
        """Take the units of work whose size is known too late. The bucket may then owe units."""
        self._fill(now)
        self._level -= units

    def _fill(self, now: float) -> None:
        if now > self._time:
            self._level = min(self._max_level, self._level + (now - self._time) * self.per_second)
            self._time = now
