"""Decide which tenants the cooldown of a failure concerns.

A tenant writes the requests, so it can make a provider fail. Its calls alone must not take a model
from other tenants.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from spawnmesh_model_router.domain.cooldown import Audience
from spawnmesh_model_router.domain.reasons import FailoverReason as R

# As long as an ordinary cooldown can be.
CONFIRM_WITHIN: Final = timedelta(minutes=5)
_UNAUTHENTICATED: Final = 401


@dataclass(frozen=True, slots=True)
class TenantFailure:
    """A failed call of a tenant. With `is_conclusive` no request can have caused the failure."""

    tenant_id: str
    reason: R
    time: datetime
    is_conclusive: bool = False


def is_conclusive(reason: R, http_status: int, *, is_answer: bool) -> bool:
    """Return whether no request can have caused the failure.

    A provider answers 401 before it reads the request, and a certificate is refused before the
    request is sent. An answer that speaks of a certificate can be about a file that the request
    names.
    """
    if reason is R.TLS_CERTIFICATE:
        return not is_answer
    return reason in (R.AUTH, R.AUTH_PERMANENT) and http_status == _UNAUTHENTICATED


def audience_of(failure: TenantFailure, unconfirmed: TenantFailure | None) -> Audience:
    """Return the tenants that the failure's cooldown concerns.

    These are all tenants if no request can have caused the failure, or if it confirms
    `unconfirmed`: that is the last failure of the same target, without a success since, that no
    other tenant has confirmed. Only the same reason confirms: a tenant can cause some reasons by
    its requests, and must not be able to confirm failures of others that it did not see.
    """
    if failure.is_conclusive:
        return Audience.ALL_TENANTS
    if (
        unconfirmed is not None
        and unconfirmed.tenant_id != failure.tenant_id
        and failure.reason is unconfirmed.reason
        and abs(failure.time - unconfirmed.time) <= CONFIRM_WITHIN
    ):
        return Audience.ALL_TENANTS
    return Audience.TENANT
