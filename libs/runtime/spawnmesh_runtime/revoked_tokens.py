"""The tokens that this process refuses although they have not expired."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from spawnmesh_core.clock import Clock, utc_now

MAX_REVOKED_TOKENS = 100_000
"""Tokens that are remembered, about 20 MB. Beyond, those that expire first are forgotten."""

# Expired entries do no harm: the tokens have expired as well. They are removed in bulk.
_PRUNED_SHARE = 0.9

log = structlog.get_logger()


def revocation_key(tenant_id: str, token_id: str) -> str:
    """Return the key of a token, or of a run, whose tokens are revoked together.

    The tenant is part of it: its operators cannot revoke a token of another tenant.
    """
    return f"{tenant_id}/{token_id}"


class RevokedTokens:
    """The keys of revoked tokens with the times at which they expire, in seconds since 1970."""

    def __init__(self, *, max_count: int = MAX_REVOKED_TOKENS, clock: Clock = utc_now) -> None:
        self._expiry: dict[str, float] = {}
        self._max_count = max_count
        self._clock = clock
        self._streams: dict[str, set[Callable[[], None]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._expiry

    def __len__(self) -> int:
        return len(self._expiry)

    def add(self, key: str, expire_timestamp: float) -> None:
        """Refuse the token from now on, and end the streams that were opened with it."""
        is_new = key not in self._expiry
        self._expiry[key] = max(expire_timestamp, self._expiry.get(key, 0.0))
        if not is_new:
            return
        for end in tuple(self._streams.get(key, ())):
            end()
        if len(self._expiry) > self._max_count:
            self._prune()

    @contextmanager
    def ending(self, key: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if the token is revoked during the block."""
        streams = self._streams.setdefault(key, set())
        streams.add(end)
        try:
            yield
        finally:
            streams.discard(end)
            if not streams:
                self._streams.pop(key, None)

    def _prune(self) -> None:
        """Remove the expired entries, and if too many are left, those that expire first."""
        now = self._clock().timestamp()
        live = {key: expiry for key, expiry in self._expiry.items() if expiry > now}
        room = int(self._max_count * _PRUNED_SHARE)
        if len(live) > room:
            log.warning("revocations_forgotten", count=len(live) - room)
            live = dict(sorted(live.items(), key=lambda entry: entry[1])[-room:])
        self._expiry = live
