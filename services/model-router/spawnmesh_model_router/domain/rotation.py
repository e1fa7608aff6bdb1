"""Choose a credential of a provider, and find the cooldown that blocks a candidate."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from spawnmesh_model_router.domain.cooldown import Cooldown
from spawnmesh_model_router.domain.reasons import FailoverReason as R

# Failures of one account: another credential of the provider may succeed at once.
ACCOUNT_REASONS: Final = frozenset({R.RATE_LIMIT, R.BILLING, R.AUTH, R.AUTH_PERMANENT})


def pick_credential(
    credentials: Sequence[str], last_uses: Mapping[str, int], cooldowns: Mapping[str, Cooldown], now: datetime
) -> str | None:
    """Return the least recently used credential that is not in cooldown.

    If all are in cooldown, return the one whose cooldown ends first, for a probe. Return None if
    there are no credentials. `last_uses` grow with each call; a credential without one was never
    used.
    """
    available = [name for name in credentials if not _is_active(cooldowns.get(name), now)]
    if available:
        return min(available, key=lambda name: last_uses.get(name, -1))
    return min(credentials, key=lambda name: cooldowns[name].until, default=None)


def other_credential(
    reason: R,
    credentials: Sequence[str],
    used: Collection[str],
    last_uses: Mapping[str, int],
    cooldowns: Mapping[str, Cooldown],
    now: datetime,
) -> str | None:
    """Return another credential for the same candidate after `reason`.

    Return None if the failure is not one of the account, or if every credential was tried or is in
    cooldown. The caller's deadline bounds the calls.
    """
    if reason not in ACCOUNT_REASONS:
        return None
    unused = [name for name in credentials if name not in used and not _is_active(cooldowns.get(name), now)]
    return pick_credential(unused, last_uses, cooldowns, now)


def blocking_cooldown(
    shared: Iterable[Cooldown | None], credentials: Iterable[Cooldown | None], now: datetime
) -> Cooldown | None:
    """Return the cooldown that blocks a candidate; None if none does.

    That is the latest of the active cooldowns of its model and provider (`shared`) and, if all its
    credentials are in cooldown, the earliest of theirs.
    """
    active = [cooldown for cooldown in shared if cooldown is not None and cooldown.active(now)]
    of_credentials = list(credentials)
    if of_credentials and all(_is_active(cooldown, now) for cooldown in of_credentials):
        active.append(
            min((cooldown for cooldown in of_credentials if cooldown is not None), key=lambda one: one.until)
        )
    return max(active, key=lambda one: one.until, default=None)


def _is_active(cooldown: Cooldown | None, now: datetime) -> bool:
    return cooldown is not None and cooldown.active(now)
