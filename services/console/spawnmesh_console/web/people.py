"""The person who looks: a token, and what its claims say for show.

The console does not verify the token: it has no rights of its own, and each service verifies the
token that a call has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jwt
from google.protobuf.descriptor import ServiceDescriptor
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.caller import ROLES, CallerKind, ClientRole
from spawnmesh_runtime.oidc import OidcIssuer, OidcVerifier


class TokenUnreadable(ValueError):
    """The text is no token of a person. The message says why."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with a token. `role` is None if the claims of the mesh do not say it, and
    `tenant_id` is empty.

    An operator of the mesh, whose token names no tenant, has the kind ADMIN; all others are clients
    of their tenant. `form_key` is in each form of the person's pages, and other sites cannot know
    it.
    """

    token: str = field(repr=False)
    form_key: str = field(repr=False)
    tenant_id: str
    subject: str
    role: ClientRole | None
    expire_time: datetime
    kind: CallerKind = CallerKind.CLIENT

    @property
    def is_of_no_tenant(self) -> bool:
        """True for an operator of the mesh whose token names no tenant."""
        return self.kind is CallerKind.ADMIN

    def may_call(self, service: str, method: str) -> bool:
        """Return whether the token opens this RPC, such as `spawnmesh.session.v1.SessionService`
        and `KillSession`. If the role is not known, the mesh decides: True, except for the RPCs of
        operators of the mesh.
        """
        described = _services()[service].methods_by_name[method]
        policy = described.GetOptions().Extensions[policy_pb2.call_policy]
        if self.is_of_no_tenant:
            return policy_pb2.CALLER_ADMIN in policy.callers
        if self.role is None:
            return policy.role < ClientRole.ADMIN
        return self.role >= policy.role


def person_of(token: str, form_key: str, issuers: Sequence[OidcIssuer] = ()) -> Person:
    """Return the person of a token, which may be of one of the issuers. Raises TokenUnreadable."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False, "verify_exp": False})
    except jwt.PyJWTError:
        raise TokenUnreadable("this is no token: one has three parts that are joined by dots") from None
    expire_time = _expire_time(claims.get("exp"))
    if expire_time is None:
        raise TokenUnreadable("the token does not say until when it is valid")
    if expire_time <= datetime.now(UTC):
        raise TokenUnreadable("the token has expired: make another one")
    kind, subject = claims.get("kind", CallerKind.CLIENT), str(claims.get("sub") or "")
    if kind == CallerKind.ADMIN and not _is_of_a_provider(str(claims.get("iss") or "")):
        return Person(token, form_key, "", subject, ClientRole.ADMIN, expire_time, CallerKind.ADMIN)
    if kind != CallerKind.CLIENT:
        raise TokenUnreadable("the token is no person's: `spawnmesh token` makes one")
    tenant_id, role = _rights(claims, token, issuers)
    return Person(token, form_key, tenant_id, subject, role, expire_time)


@cache
def _services() -> Mapping[str, ServiceDescriptor]:
    return {service.full_name: service for service in mesh_services()}


def _expire_time(expiry: object) -> datetime | None:
    """Return the time; None for what is no time of a calendar."""
    if not isinstance(expiry, int | float):
        return None
    try:
        return datetime.fromtimestamp(expiry, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _rights(
    claims: dict[str, Any], token: str, issuers: Sequence[OidcIssuer]
) -> tuple[str, ClientRole | None]:
    """Return the tenant and the role, from the claims that the settings of the issuer name.

    For an identity provider that the settings do not name, neither is known.
    """
    named = str(claims.get("iss") or "")
    for issuer in issuers:
        if issuer.issuer == named:
            try:
                caller = OidcVerifier(issuer, max_lifetime_seconds=0).caller_of(claims, named, token)
            except MeshError:  # A service that is called says so, too.
                return "", None
            return caller.tenant_id, caller.role
    if _is_of_a_provider(named):
        return "", None
    return str(claims.get("tenant") or ""), _role(claims)


def _role(claims: Mapping[str, Any]) -> ClientRole | None:
    """Return the role. A token of the mesh without roles is an operator's of the tenant."""
    if "tenant" not in claims:
        return None
    roles = claims.get("roles")
    if roles is None:
        return ClientRole.OPERATOR
    named = roles if isinstance(roles, list) else []
    return max((ROLES.get(str(role), ClientRole.NONE) for role in named), default=ClientRole.NONE)


def _is_of_a_provider(issuer: str) -> bool:
    """Return whether the issuer is an identity provider, and none of the mesh."""
    return issuer.startswith(("https://", "http://"))
