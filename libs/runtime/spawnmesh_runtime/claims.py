"""Read the claims of a verified token."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import AGENT_ID, TENANT_ID
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.caller import ROLES, Caller, CallerKind, ClientRole
from spawnmesh_runtime.revoked_tokens import revocation_key

MAX_LIMITS = 32
"""The largest number of tenants, and of agents, that the token of a runner names."""

_CLOCK_SKEW_SECONDS = 30
_LAST_TIME = 253_402_300_799  # The end of the year 9999. A number that is not one compares as false.
_TOKEN_ID = re.compile(r"[!-~]{1,256}")


def invalid_token(what: str) -> MeshError:
    """Return the refusal of a token. `what` repeats no part of it."""
    return MeshError(Reason.TOKEN_INVALID, f"the token is not accepted: {what}")


def expired_token() -> MeshError:
    """Return the refusal of an expired token."""
    return MeshError(Reason.TOKEN_EXPIRED, "the token has expired; get a new one")


def check_times(claims: Mapping[str, Any], now: float, max_lifetime_seconds: float) -> float:
    """Return the expiry.

    Raises MeshError if the token is not valid now, or is valid for too long.
    """
    expiry, issued = _time(claims, "exp"), _time(claims, "iat")
    if expiry <= now:
        raise expired_token()
    begin = max(issued, _time(claims, "nbf")) if "nbf" in claims else issued
    if begin > now + _CLOCK_SKEW_SECONDS:
        raise invalid_token("it is not valid yet")
    if expiry - issued > max_lifetime_seconds:
        raise MeshError(
            Reason.TOKEN_LIFETIME_EXCEEDED,
            f"the token is valid for longer than {max_lifetime_seconds:.0f} s; get one with a shorter life",
            facts={"max_seconds": int(max_lifetime_seconds)},
        )
    return expiry


def token_id_of(claims: Mapping[str, Any], token: str) -> str:
    """Return the id under which the token can be revoked: its `jti`, or a hash of its signed part.

    The signature is left out: the holder of a token can often make another form of it.
    """
    jti = claims.get("jti")
    if isinstance(jti, str) and _TOKEN_ID.fullmatch(jti):
        return jti
    signed, _, _ = token.rpartition(".")
    return f"sha256:{hashlib.sha256(signed.encode()).hexdigest()}"


def text_claim(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that is text and not empty. Raises MeshError TOKEN_INVALID."""
    return checked_text(claims.get(name), name)


def checked_text(value: object, name: str) -> str:
    """Return the value of a claim that is text and not empty. Raises MeshError TOKEN_INVALID."""
    if not isinstance(value, str) or not value:
        raise invalid_token(f"the claim {name} is missing or is not text")
    return value


def checked_tenant(value: object, name: str = "tenant") -> str:
    """Return the value of a claim that is a tenant id. Raises MeshError TOKEN_INVALID."""
    tenant_id = checked_text(value, name)
    if TENANT_ID.fullmatch(tenant_id) is None:
        raise invalid_token(
            f"the claim {name} is not a tenant id: 2 to 39 lower-case letters, digits and hyphens"
        )
    return tenant_id


def highest_role(names: object, name: str = "roles") -> ClientRole:
    """Return the highest role among the names; other names are ignored. Raises MeshError
    TOKEN_INVALID if they are not names.
    """
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise invalid_token(f"the claim {name} is not a list of names")
    return max((ROLES[one] for one in names if one in ROLES), default=ClientRole.NONE)


def caller_of(claims: Mapping[str, Any], token: str) -> Caller:
    """Return the caller that a token of the mesh names. Raises MeshError TOKEN_INVALID."""
    if claims["kind"] not in list(CallerKind):
        raise invalid_token("the claim kind names no kind of caller")
    kind = CallerKind(claims["kind"])
    subject = text_claim(claims, "sub")
    match kind:
        case CallerKind.CLIENT:
            tenant_id = checked_tenant(claims.get("tenant"))
            return Caller(
                kind,
                subject,
                tenant_id,
                permissions=_permissions(claims),
                role=highest_role(claims["roles"]) if "roles" in claims else ClientRole.OPERATOR,
                revocation_key=revocation_key(tenant_id, token_id_of(claims, token)),
            )
        case CallerKind.SERVICE:
            tenant_id = checked_tenant(claims["tenant"]) if "tenant" in claims else ""
            return Caller(kind, subject, tenant_id, service=subject)
        case CallerKind.RUN:
            return _run_of(claims, subject)
        case CallerKind.RUNNER:
            return _runner_of(claims, subject, token_id_of(claims, token))
        case CallerKind.ADMIN:
            key = revocation_key("", token_id_of(claims, token))
            return Caller(kind, subject, role=ClientRole.ADMIN, revocation_key=key)


def _runner_of(claims: Mapping[str, Any], subject: str, token_id: str) -> Caller:
    tenants = _limits(claims, "tenants", TENANT_ID)
    return Caller(
        CallerKind.RUNNER,
        subject,
        tenants=tenants,
        agents=_limits(claims, "agents", AGENT_ID),
        revocation_key=revocation_key("", token_id),
        # The token is the tenant's own if it is of no other.
        further_keys=tuple(revocation_key(one, token_id) for one in tenants) if len(tenants) == 1 else (),
    )


def _run_of(claims: Mapping[str, Any], subject: str) -> Caller:
    epoch = claims.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise invalid_token("the claim epoch is missing or is not an integer")
    harness, traceparent = claims.get("harness", ""), claims.get("traceparent", "")
    if not isinstance(harness, str) or not isinstance(traceparent, str):
        raise invalid_token("the claims harness and traceparent are not text")
    has_budget = claims.get("budget", False)
    if not isinstance(has_budget, bool):
        raise invalid_token("the claim budget is neither true nor false")
    agent_id = claims.get("agent", "")
    if not isinstance(agent_id, str) or not (agent_id == "" or AGENT_ID.fullmatch(agent_id)):
        raise invalid_token("the claim agent is not an agent id")
    tenant_id, run_id = checked_tenant(claims.get("tenant")), text_claim(claims, "run")
    return Caller(
        CallerKind.RUN,
        subject,
        tenant_id,
        text_claim(claims, "session"),
        run_id,
        epoch=epoch,
        harness_token_id=harness,
        traceparent=traceparent,
        has_budget=has_budget,
        agent_id=agent_id,
        revocation_key=revocation_key(tenant_id, run_id),
        # Operators of the mesh and of the tenant revoke the token of a harness.
        further_keys=(revocation_key("", harness), revocation_key(tenant_id, harness)) if harness else (),
    )


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_TIME:
        raise invalid_token(f"the claim {name} is not a time")
    return float(value)


def _limits(claims: Mapping[str, Any], name: str, form: re.Pattern[str]) -> frozenset[str]:
    """Return the names that limit a runner; none if the token has no such claim.

    An empty list is refused: it would be no limit.
    """
    if name not in claims:
        return frozenset()
    value = claims[name]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LIMITS:
        raise invalid_token(f"the claim {name} is not a list of 1 to {MAX_LIMITS} ids")
    if not all(isinstance(one, str) and form.fullmatch(one) for one in value):
        raise invalid_token(f"the claim {name} has an entry that is not an id")
    return frozenset(value)


def _permissions(claims: Mapping[str, Any]) -> frozenset[str]:
    value = claims.get("permissions", [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise invalid_token("the claim permissions is not a list of names")
    return frozenset(value)
