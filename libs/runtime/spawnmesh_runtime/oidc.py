"""Tokens of OpenID Connect issuers, which know nothing of the mesh.

Such a token has plain `iss`, `aud`, `sub`, `exp` and `iat`. The settings say which claims have the
tenant and the roles. It opens what the token of a client opens.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

import jwt
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from spawnmesh_core.clock import Clock, utc_now

from spawnmesh_runtime.caller import ROLES, Caller, CallerKind, ClientRole
from spawnmesh_runtime.claims import (
    checked_tenant,
    highest_role,
    invalid_token,
    text_claim,
    token_id_of,
)
from spawnmesh_runtime.jwks import JwksUrl, KeySource, check_https
from spawnmesh_runtime.key_verifier import KeyVerifier, TokenRules, check_form
from spawnmesh_runtime.revoked_tokens import revocation_key

_REQUIRED = ("iss", "sub", "aud", "exp", "iat")
_TENANTS = re.compile(r"[a-z0-9][a-z0-9-]{0,38}\*?")


class OidcIssuer(BaseModel):
    """An issuer of the operator's choice, whose tokens clients may present.

    `tenant_claim` and `roles_claim` name a claim, or with dots a value inside of one, such as
    `realm_access.roles`. Roles above `max_role` are ignored, and so are names that are no roles of
    the mesh. If `roles_claim` is empty, every token has `max_role`.

    The issuer names only these `tenants`: ids, or beginnings of ids with a `*` at the end. Without
    any it names every tenant. An issuer for some tenants cannot give the role admin, which is for
    all of them. Both URLs are HTTPS, except on this machine: who changes the keys on their way is
    the issuer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(pattern=r"^https?://[^\s]+$")
    audience: str = Field(min_length=1)
    jwks_url: str = Field(pattern=r"^https?://[^\s]+$")
    tenant_claim: str = Field(default="tenant", min_length=1)
    roles_claim: str = "roles"
    max_role: Literal["reader", "user", "operator", "admin"] = "operator"
    tenants: tuple[str, ...] = ()

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _is_private_on_its_way(cls, value: str) -> str:
        return check_https(value)

    @field_validator("tenants")
    @classmethod
    def _are_tenants(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not all(_TENANTS.fullmatch(one) for one in value):
            raise ValueError("must be tenant ids, or beginnings of them with * at the end")
        return value

    @model_validator(mode="after")
    def _is_no_operator_of_some_tenants(self) -> Self:
        if self.tenants and self.max_role == "admin":
            raise ValueError("max_role admin is for every tenant and excludes tenants")
        return self

    def names(self, tenant_id: str) -> bool:
        """Return whether the issuer may name the tenant."""
        return not self.tenants or any(
            tenant_id.startswith(one[:-1]) if one.endswith("*") else tenant_id == one for one in self.tenants
        )


class OidcVerifier(KeyVerifier):
    """Verify the tokens of one issuer with the keys that it publishes."""

    def __init__(
        self,
        issuer: OidcIssuer,
        *,
        max_lifetime_seconds: float,
        source: KeySource | None = None,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(
            source or JwksUrl(issuer.jwks_url, issuer=issuer.issuer),
            TokenRules(issuer.audience, _REQUIRED, max_lifetime_seconds),
            clock,
        )
        self._issuer = issuer
        self._max_role = ROLES[issuer.max_role]

    def issued(self, token: str) -> bool:
        """Return whether the token says that it is of this issuer. It may be forged."""
        if self.knows(token):
            return True
        check_form(token)
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError:
            return False
        return claims.get("iss") == self._issuer.issuer

    def caller_of(self, claims: dict[str, Any], issuer: str, token: str) -> Caller:
        """Return the client that the claims name: of a tenant, or an operator of the mesh."""
        role = self._role_of(claims)
        tenant = _value_at(claims, self._issuer.tenant_claim)
        is_admin = tenant is None and role is ClientRole.ADMIN
        tenant_id = "" if is_admin else checked_tenant(tenant, self._issuer.tenant_claim)
        if not is_admin and not self._issuer.names(tenant_id):
            raise invalid_token("its issuer may not name this tenant")
        return Caller(
            CallerKind.ADMIN if is_admin else CallerKind.CLIENT,
            text_claim(claims, "sub"),
            tenant_id,
            role=role,
            expire_timestamp=float(claims["exp"]),
            issuer=issuer,
            revocation_key=revocation_key(tenant_id, token_id_of(claims, token)),
        )

    def _role_of(self, claims: Mapping[str, Any]) -> ClientRole:
        name = self._issuer.roles_claim
        if not name:
            return self._max_role
        value = _value_at(claims, name)
        if isinstance(value, str):  # As in `scope`.
            value = value.split()
        if value is None:
            return ClientRole.NONE
        if not isinstance(value, list):
            raise invalid_token(f"the claim {name} is not a list of names")
        granted = [one for one in value if not isinstance(one, str) or _rank(one) <= self._max_role]
        return highest_role(granted, name)


def _rank(name: str) -> ClientRole:
    return ROLES.get(name, ClientRole.NONE)


def _value_at(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim of this name, or the value at the dotted path; None without one."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value
