"""The tokens that this process refuses although they have not expired."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter

import structlog
from spawnmesh_core.clock import Clock, utc_now

# Expired entries do no harm: the tokens have expired as well. They are removed in bulk.
_PRUNED_SHARE = 0.9

log = structlog.get_logger()


def revocation_key(tenant_id: str, token_id: str) -> str:
    """Return the key of a token, or of a run, whose tokens are revoked together.

    The tenant is part of it: its operators cannot revoke a token of another tenant.
    """
    return f"{tenant_id}/{token_id}"


class RevokedTokens:
    """The keys of revoked tokens with the times at which they expire, in seconds since 1970.

    Tokens that were revoked by a request and runs that have ended have a capacity each: no number
    of requests makes this process forget an ended run. Beyond a capacity, the tenants with the most
    entries lose those that expire first. 100,000 tokens take at most 50 MB, as many runs 20 MB.
    """

    def __init__(self, *, max_count: int, max_run_count: int, clock: Clock = utc_now) -> None:
        self._tokens = _Entries("tokens", max_count, clock)
        self._runs = _Entries("runs", max_run_count, clock)
        self._streams: dict[str, set[Callable[[], None]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tokens.expiry or key in self._runs.expiry

    def __len__(self) -> int:
        return len(self._tokens.expiry) + len(self._runs.expiry)

    @property
    def capacity(self) -> int:
        """The largest number of entries."""
        return self._tokens.max_count + self._runs.max_count

    def add(self, key: str, expire_timestamp: float, *, is_run: bool = False) -> None:
        """Refuse the token from now on, and end the streams that were opened with it."""
        is_new = key not in self
        (self._runs if is_run else self._tokens).add(key, expire_timestamp)
        if not is_new:
            return
        for end in tuple(self._streams.get(key, ())):
            end()

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


class _Entries:
    """Keys with their expiry, up to a number of them."""

    def __init__(self, kind: str, max_count: int, clock: Clock) -> None:
        self.expiry: dict[str, float] = {}
        self.max_count = max_count
        self._kind = kind
        self._clock = clock

    def add(self, key: str, expire_timestamp: float) -> None:
        self.expiry[key] = max(expire_timestamp, self.expiry.get(key, 0.0))
        if len(self.expiry) > self.max_count:
            self._prune()

    def _prune(self) -> None:
        """Remove the expired entries. If too many are left, remove from the tenants with the most
        of them those that expire first.
        """
        now = self._clock().timestamp()
        live = {key: expiry for key, expiry in self.expiry.items() if expiry > now}
        room = int(self.max_count * _PRUNED_SHARE)
        if len(live) > room:
            log.warning("revocations_forgotten", kind=self._kind, count=len(live) - room)
            live = _fair_share(live, room)
        self.expiry = live


def _fair_share(entries: dict[str, float], room: int) -> dict[str, float]:
    """Return at most `room` entries. Tenants with few lose none before those with more.

    Entries without a tenant are of operators of the mesh: they are lost last.
    """
    tenants = defaultdict[str, list[tuple[str, float]]](list)
    for entry in entries.items():
        tenants[entry[0].partition("/")[0]].append(entry)
    kept = _last_to_expire(tenants.pop("", []), room)
    smallest_first = sorted(tenants.values(), key=len)
    for rank, of_tenant in enumerate(smallest_first):
        share = (room - len(kept)) // (len(smallest_first) - rank)
        kept.update(_last_to_expire(of_tenant, share))
    return kept


def _last_to_expire(entries: list[tuple[str, float]], count: int) -> dict[str, float]:
    if len(entries) <= count:
        return dict(entries)
    return dict(sorted(entries, key=itemgetter(1))[len(entries) - count :])
