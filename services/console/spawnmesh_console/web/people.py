"""The person who looks: a token, and what its claims say for show.

The console does not verify the token: it has no rights of its own, and each service verifies the
token that a call has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jwt
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_calls.contracts import service_descriptor
from spawnmesh_runtime.caller import ROLES, ClientRole

_CLIENT = "client"


class TokenUnreadable(ValueError):
    """The text is no token of a person. The message says why."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with a token. `role` is None if the claims of the mesh do not say it.

    `form_key` is in each form of the person's pages, and other sites cannot know it.
    """

    token: str = field(repr=False)
    form_key: str = field(repr=False)
    tenant_id: str
    subject: str
    role: ClientRole | None
    expire_time: datetime

    def may_call(self, service: str, method: str) -> bool:
        """Return whether the role opens this RPC, such as `spawnmesh.session.v1.SessionService` and
        `KillSession`. True if the role is not known: then the mesh decides.
        """
        described = service_descriptor(service).methods_by_name[method]
        needed = described.GetOptions().Extensions[policy_pb2.call_policy].role
        return self.role is None or self.role >= needed


def person_of(token: str, form_key: str) -> Person:
    """Return the person of a token. Raises TokenUnreadable."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False, "verify_exp": False})
    except jwt.PyJWTError:
        raise TokenUnreadable("this is no token: one has three parts that are joined by dots") from None
    expiry = claims.get("exp")
    if not isinstance(expiry, int | float):
        raise TokenUnreadable("the token does not say until when it is valid")
    expire_time = datetime.fromtimestamp(expiry, UTC)
    if expire_time <= datetime.now(UTC):
        raise TokenUnreadable("the token has expired: make another one")
    if claims.get("kind", _CLIENT) != _CLIENT:
        raise TokenUnreadable("the token is no person's of a tenant: `spawnmesh token` makes one")
    tenant_id, subject = str(claims.get("tenant") or ""), str(claims.get("sub") or "")
    return Person(token, form_key, tenant_id, subject, _role(claims), expire_time)


def _role(claims: Mapping[str, Any]) -> ClientRole | None:
    """Return the role. A token of the mesh without roles is an operator's of the tenant."""
    if "tenant" not in claims:
        return None
    roles = claims.get("roles")
    if roles is None:
        return ClientRole.OPERATOR
    named = roles if isinstance(roles, list) else []
    return max((ROLES.get(str(role), ClientRole.NONE) for role in named), default=ClientRole.NONE)
