"""Which of a provider's credentials is used, and what rests a candidate as a whole."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from spawnmesh_model_router.domain.cooldown import Cooldown
from spawnmesh_model_router.domain.reasons import FailoverReason as R

# Failures that are an account's own: another credential of the provider may do better at once.
OF_THE_ACCOUNT: Final = frozenset({R.RATE_LIMIT, R.BILLING, R.AUTH, R.AUTH_PERMANENT})
MOST_CREDENTIALS_TRIED: Final = 2


def pick_credential(
    credentials: Sequence[str], last_uses: Mapping[str, int], cooldowns: Mapping[str, Cooldown], now: datetime
) -> str | None:
    """The credential that was not used for longest among those that do not rest, else the one whose rest ends first; None of none.

    `last_uses` grow from call to call; a credential without one was never used. A resting one is given for a probe.
    """
    awake = [name for name in credentials if not _rests(cooldowns.get(name), now)]
    if awake:
        return min(awake, key=lambda name: last_uses.get(name, -1))
    return min(credentials, key=lambda name: cooldowns[name].until, default=None)


def other_credential(
    reason: R,
    credentials: Sequence[str],
    used: Collection[str],
    last_uses: Mapping[str, int],
    cooldowns: Mapping[str, Cooldown],
    now: datetime,
) -> str | None:
    """The credential to ask the same candidate with after `reason`; None when the failure is not an account's, or enough were used."""
    if reason not in OF_THE_ACCOUNT or len(used) >= MOST_CREDENTIALS_TRIED:
        return None
    unused = [name for name in credentials if name not in used and not _rests(cooldowns.get(name), now)]
    return pick_credential(unused, last_uses, cooldowns, now)


def resting(
    shared: Iterable[Cooldown | None], credentials: Iterable[Cooldown | None], now: datetime
) -> Cooldown | None:
    """The cooldown that keeps a candidate from being asked, None without one.

    That is the latest of those on its model and provider (`shared`), or the earliest on its credentials when every one of them rests.
    """
    active = [cooldown for cooldown in shared if cooldown is not None and cooldown.active(now)]
    of_credentials = list(credentials)
    if of_credentials and all(_rests(cooldown, now) for cooldown in of_credentials):
        active.append(min((cooldown for cooldown in of_credentials if cooldown is not None), key=lambda one: one.until))
    return max(active, key=lambda one: one.until, default=None)


def _rests(cooldown: Cooldown | None, now: datetime) -> bool:
    return cooldown is not None and cooldown.active(now)
