"""Bearer tokens: JWTs with EdDSA or RS256 that name the caller, its tenant and the expiry.

Claims: `iss`, `sub`, `aud`, `iat`, `nbf`, `exp`, `kind`, and, depending on the kind, `tenant`,
`session`, `run` and `epoch`. The token of a client may have `permissions`, a list of names. That
of a runner may have `tenants` and `agents`, lists that limit the runs it gets.
"""

import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import AGENT_ID, TENANT_ID
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.jwks import IssuerKey, Keys, KeySource
from spawnmesh_runtime.key_files import key_id_of

AUDIENCE = "spawnmesh"
SERVICES = frozenset({"session", "attachment-blob", "transcript", "model-router", "hook"})
SERVICE_TOKEN_SECONDS = 300
# A cached service token is replaced before its last minute, so that it outlives the call.
_RENEW_SECONDS = 60
_CLOCK_SKEW_SECONDS = 30
_CACHED_TOKENS = 4096
_MAX_TOKEN_CHARS = 8192
MAX_LIMITS = 32
"""The largest number of tenants, and of agents, that the token of a runner names."""


def _invalid(what: str) -> MeshError:
    return MeshError(Reason.TOKEN_INVALID, f"the token is not accepted: {what}")


def _expired() -> MeshError:
    return MeshError(Reason.TOKEN_EXPIRED, "the token has expired; get a new one")


def plugin_audience(audience: str, endpoint: str) -> str:
    """Return the audience of tokens for the plugin at the endpoint.

    `endpoint` is the registered endpoint of the plugin. A plugin is not part of the mesh: its
    tokens must not open the mesh or another plugin.
    """
    return f"{audience}/{endpoint}"


class TokenMinter:
    """Sign tokens as one issuer, with the key id of the key file.

    Raises OSError if the key file cannot be read, and ValueError if it has no Ed25519 or RSA
    private key.
    """

    def __init__(
        self, issuer: str, key_file: Path, *, audience: str = AUDIENCE, clock: Clock = utc_now
    ) -> None:
        pem = key_file.read_bytes()
        key = load_pem_private_key(pem, password=None)
        if not isinstance(key, Ed25519PrivateKey | RSAPrivateKey):
            raise ValueError("the signing key is neither Ed25519 nor RSA")
        self.issuer = issuer
        self._key = key
        self._key_id = key_id_of(pem, issuer)
        self._algorithm = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "RS256"
        self._audience = audience
        self._clock = clock
        self._service_tokens: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def service_token(self, tenant_id: str, *, plugin: str = "") -> str:
        """Return a token for this service and the tenant. It is cached until it nearly expires.

        It opens the services of the mesh, or only the plugin at the endpoint `plugin`.
        """
        now = self._clock().timestamp()
        key = tenant_id, plugin
        cached = self._service_tokens.get(key)
        if cached is not None and cached[1] - now > _RENEW_SECONDS:
            return cached[0]
        audience = plugin_audience(self._audience, plugin) if plugin else self._audience
        token = self._sign(
            CallerKind.SERVICE, self.issuer, SERVICE_TOKEN_SECONDS, tenant=tenant_id, aud=audience
        )
        self._service_tokens[key] = token, int(now) + SERVICE_TOKEN_SECONDS
        self._service_tokens.move_to_end(key)
        if len(self._service_tokens) > _CACHED_TOKENS:
            self._service_tokens.popitem(last=False)
        return token

    def run_token(self, tenant_id: str, session_id: str, run_id: str, epoch: int, ttl_seconds: float) -> str:
        """Return a token for a run that is claimed with this epoch."""
        return self._sign(
            CallerKind.RUN, run_id, ttl_seconds, tenant=tenant_id, session=session_id, run=run_id, epoch=epoch
        )

    def runner_token(
        self,
        subject: str = "",
        ttl_seconds: float = SERVICE_TOKEN_SECONDS,
        *,
        tenants: Collection[str] = (),
        agents: Collection[str] = (),
    ) -> str:
        """Return a token that only allows claiming runs: those of the tenants and the agents, or of
        all if none are named.

        The subject is the issuer if none is named.
        """
        named = {"tenants": sorted(set(tenants)), "agents": sorted(set(agents))}
        limits = {claim: names for claim, names in named.items() if names}
        return self._sign(CallerKind.RUNNER, subject or self.issuer, ttl_seconds, **limits)

    def client_token(
        self, tenant_id: str, subject: str, ttl_seconds: float, *, permissions: Collection[str] = ()
    ) -> str:
        """Return a token for a client of the tenant, with additional permissions."""
        extra = {"permissions": sorted(permissions)} if permissions else {}
        return self._sign(CallerKind.CLIENT, subject, ttl_seconds, tenant=tenant_id, **extra)

    def admin_token(self, subject: str, ttl_seconds: float) -> str:
        """Return a token for an operator."""
        return self._sign(CallerKind.ADMIN, subject, ttl_seconds)

    def _sign(
        self, kind: CallerKind, subject: str, ttl_seconds: float, **claims: str | int | list[str]
    ) -> str:
        now = int(self._clock().timestamp())
        body = {
            "iss": self.issuer,
            "sub": subject,
            "aud": self._audience,
            "iat": now,
            "nbf": now,
            "exp": int(now + ttl_seconds),
            "kind": kind.value,
            **claims,
        }
        return jwt.encode(body, self._key, algorithm=self._algorithm, headers={"kid": self._key_id})


class TokenVerifier:
    """Verify tokens and return their callers.

    A token is valid if a known key signed it, the key belongs to the issuer that the token names,
    and the issuer may issue tokens for this kind of caller. Verified tokens are cached until they
    expire or the keys change. A refusal repeats no part of the token.
    """

    def __init__(
        self,
        source: KeySource,
        *,
        audience: str = AUDIENCE,
        client_issuers: Collection[str] = ("client",),
        clock: Clock = utc_now,
    ) -> None:
        self._source = source
        self._audience = audience
        self._client_issuers = frozenset(client_issuers)
        self._clock = clock
        self._verified: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._verified_with: Keys = {}

    def for_plugin(self, endpoint: str) -> "TokenVerifier":
        """Return a verifier with the same keys that accepts only tokens for the plugin
        at the endpoint.
        """
        audience = plugin_audience(self._audience, endpoint)
        return TokenVerifier(
            self._source, audience=audience, client_issuers=self._client_issuers, clock=self._clock
        )

    async def has_keys(self) -> bool:
        """Fetch keys if there have never been any, and return whether tokens can be verified."""
        try:
            await self._source.refresh(unknown_key=False)
        except MeshError:
            return False
        return True

    async def authenticate(self, token: str) -> Caller:
        """Verify the token like `verify`, and refresh the keys first if that is due."""
        await self._source.refresh(unknown_key=False)
        if token not in self._verified and not self._keys_of(token):
            await self._source.refresh(unknown_key=True)
        return self.verify(token)

    def verify(self, token: str) -> Caller:
        """Return the caller, with the current keys.

        Raises MeshError TOKEN_INVALID or TOKEN_EXPIRED.
        """
        keys = self._source.keys()
        if keys is not self._verified_with:
            self._verified.clear()
            self._verified_with = keys
        now = self._clock().timestamp()
        known = self._verified.get(token)
        if known is None:
            known = self._read(token, now)
            self._verified[token] = known
            if len(self._verified) > _CACHED_TOKENS:
                self._verified.popitem(last=False)
        caller, expiry = known
        if expiry <= now:
            del self._verified[token]
            raise _expired()
        self._verified.move_to_end(token)
        return caller

    def _keys_of(self, token: str) -> tuple[IssuerKey, ...]:
        if len(token) > _MAX_TOKEN_CHARS:
            raise _invalid("it is too long")
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            raise _invalid("it is not a signed JWT") from None
        return self._source.keys().get(key_id, ()) if isinstance(key_id, str) else ()

    def _read(self, token: str, now: float) -> tuple[Caller, float]:
        keys = self._keys_of(token)
        if not keys:
            raise _invalid("it is signed with a key that is not known here")
        issuer, claims = self._signed_claims(token, keys)
        expiry = _time(claims, "exp")
        if expiry <= now:
            raise _expired()
        if max(_time(claims, "nbf"), _time(claims, "iat")) > now + _CLOCK_SKEW_SECONDS:
            raise _invalid("it is not valid yet")
        caller = replace(_caller_of(claims), expire_timestamp=expiry, issuer=issuer)
        if not self._may_issue(issuer, caller):
            raise _invalid("its issuer may not issue tokens for this kind of caller")
        return caller, expiry

    def _signed_claims(self, token: str, keys: tuple[IssuerKey, ...]) -> tuple[str, dict[str, Any]]:
        """Return the issuer and the claims of a token.

        The key id is only a hint: a key must verify the signature and belong to the issuer of the
        token.
        """
        refusal = _invalid("its signature or its form is wrong")
        for key in keys:
            try:
                return key.issuer, self._decoded(token, key)
            except jwt.MissingRequiredClaimError as error:
                raise _invalid(f"it lacks the claim {error.claim}") from None
            except jwt.InvalidAudienceError:
                raise _invalid(f"it was made for another audience than {self._audience}") from None
            except jwt.InvalidIssuerError:
                refusal = _invalid("its key belongs to another issuer")
            except jwt.PyJWTError:  # Another one of the keys may have signed it.
                continue
        raise refusal

    def _decoded(self, token: str, key: IssuerKey) -> dict[str, Any]:
        return jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=self._audience,
            issuer=key.issuer,
            options={
                "require": ["iss", "sub", "aud", "exp", "nbf", "iat", "kind"],
                # The times are compared with our clock, each with its own leeway.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )

    def _may_issue(self, issuer: str, caller: Caller) -> bool:
        match caller.kind:
            case CallerKind.CLIENT | CallerKind.ADMIN:
                return issuer in self._client_issuers
            case CallerKind.RUN:
                return issuer == "session"
            case CallerKind.SERVICE:
                return issuer in SERVICES and caller.subject == issuer
            case CallerKind.RUNNER:
                return issuer == "runner" or (issuer in self._client_issuers and bool(caller.tenants))


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"the claim {name} is not a time")
    return float(value)


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise _invalid(f"the claim {name} is missing or is not text")
    return value


def _tenant(claims: dict[str, Any]) -> str:
    value = _text(claims, "tenant")
    if TENANT_ID.fullmatch(value) is None:
        raise _invalid("the claim tenant is not a tenant id: 2 to 39 lower-case letters, digits and hyphens")
    return value


def _limits(claims: dict[str, Any], name: str, form: re.Pattern[str]) -> frozenset[str]:
    """Return the names that limit a runner; none if the token has no such claim.

    An empty list is refused: it would be no limit.
    """
    if name not in claims:
        return frozenset()
    value = claims[name]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LIMITS:
        raise _invalid(f"the claim {name} is not a list of 1 to {MAX_LIMITS} ids")
    if not all(isinstance(one, str) and form.fullmatch(one) for one in value):
        raise _invalid(f"the claim {name} has an entry that is not an id")
    return frozenset(value)


def _permissions(claims: dict[str, Any]) -> frozenset[str]:
    value = claims.get("permissions", [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _invalid("the claim permissions is not a list of names")
    return frozenset(value)


def _caller_of(claims: dict[str, Any]) -> Caller:
    if claims["kind"] not in list(CallerKind):
        raise _invalid("the claim kind names no kind of caller")
    kind = CallerKind(claims["kind"])
    subject = _text(claims, "sub")
    match kind:
        case CallerKind.CLIENT:
            return Caller(kind, subject, _tenant(claims), permissions=_permissions(claims))
        case CallerKind.SERVICE:
            return Caller(kind, subject, _tenant(claims), service=subject)
        case CallerKind.RUN:
            epoch = claims.get("epoch")
            if isinstance(epoch, bool) or not isinstance(epoch, int):
                raise _invalid("the claim epoch is missing or is not an integer")
            return Caller(
                kind, subject, _tenant(claims), _text(claims, "session"), _text(claims, "run"), epoch=epoch
            )
        case CallerKind.RUNNER:
            tenants, agents = _limits(claims, "tenants", TENANT_ID), _limits(claims, "agents", AGENT_ID)
            return Caller(kind, subject, tenants=tenants, agents=agents)
        case CallerKind.ADMIN:
            return Caller(kind, subject)
