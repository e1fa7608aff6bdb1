"""Exponential backoff with jitter."""


def backoff_seconds(attempt: int, *, jitter: float, floor: float | None = None, cap: float = 5.0) -> float:
    """Return the pause before the next attempt: doubling from 0.1 s to `cap`.

    `jitter` in [0, 1) spreads the pause over its upper half. `floor` is the pause that the peer
    asked for. It is limited by `cap` too, since the lease keeps running meanwhile.
    """
    full = min(cap, 0.1 * float(1 << min(attempt, 16)))
    return max(full * (0.5 + jitter / 2), min(floor or 0.0, cap))
